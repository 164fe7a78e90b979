// Reads a Hugging Face tokenizer.json.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "common/text/tokenizer_spec.h"

namespace outrider {

// INVALID_ARGUMENT, naming the field, for text that is not such a file or that asks for what TokenizerSpec
// cannot say.
absl::StatusOr<TokenizerSpec> ParseTokenizerJson(std::string_view json);

}  // namespace outrider
