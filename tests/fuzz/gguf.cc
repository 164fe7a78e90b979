// Reads a GGUF file. Its tensors must lie in it. The tokenizer in its metadata then encodes a text.
#include "common/gguf/gguf_file.h"

#include <fstream>

#include "bench/temporary_folder.h"
#include "common/text/tokenizer.h"
#include "tests/fuzz/target.h"

namespace outrider {

void FuzzTarget(std::string_view input) {
  static const TemporaryFolder folder;
  static const std::string path = folder.path() + "/model.gguf";
  std::ofstream(path, std::ios::binary) << input;
  const absl::StatusOr<GgufFile> file = GgufFile::Open(path);
  if (!file.ok()) return;
  file->Hash();  // reads all tensors
  const auto tokenizer = Tokenizer::Load(path);
  if (!tokenizer.ok()) return;
  const auto tokens = (*tokenizer)->Encode("The  <word>\n1234's \u4e2d\xFF aaaaaaaaaaaaaaaaaaaaaaaa!", true);
  if (!tokens.ok()) return;
  for (const TokenId token : *tokens) {
    Require(token >= 0 && token < (*tokenizer)->vocab_size(), "a token is in the vocabulary");
  }
  (*tokenizer)->Decode(*tokens, /*skip_special_tokens=*/true);
}

}  // namespace outrider
