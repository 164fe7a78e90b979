// Parses a Hugging Face tokenizer.json.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "common/text/tokenizer_spec.h"

namespace outrider {

// INVALID_ARGUMENT, naming the field, if the text is not such a file or needs something that TokenizerSpec
// cannot express.
absl::StatusOr<TokenizerSpec> ParseTokenizerJson(std::string_view json);

}  // namespace outrider
