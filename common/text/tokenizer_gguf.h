// The tokenizer in a GGUF file's metadata.
#pragma once

#include "absl/status/statusor.h"
#include "common/gguf/gguf_file.h"
#include "common/text/tokenizer_spec.h"

namespace outrider {

// Returns what the model's tokenizer.json would say, as far as the metadata tell. They have no options of
// added tokens, so none of these strips spaces. They do not tell whether later stretches of a text get
// SentencePiece's leading space, so these do. `tokenizer.ggml.model` may be gpt2 (byte-level BPE, split as
// FindGgufSplit says), llama (SentencePiece's BPE, whose scores become merges as in transformers' converter)
// or gemma4 (the same with merges). INVALID_ARGUMENT, in one line that names the file and the key, if
// something is damaged or not supported.
absl::StatusOr<TokenizerSpec> ReadGgufTokenizer(const GgufFile& file);

}  // namespace outrider
