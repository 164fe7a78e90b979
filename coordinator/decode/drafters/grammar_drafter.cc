#include "coordinator/decode/drafters/grammar_drafter.h"

#include <algorithm>

#include "common/grammar/vocabulary.h"

namespace outrider {

Proposal GrammarDrafter::Draft(int k) {
  const Request& request = generation_->request();
  const size_t committed = generation_->tokens().size() - request.prompt.size();
  while (spelled_ < committed) Spell(generation_->tokens()[request.prompt.size() + spelled_++], bytes_);
  std::vector<TokenId> bytes = bytes_;
  Proposal chain;
  while (static_cast<int>(chain.size()) < k) {
    const std::vector<TokenId> forced = Forced(bytes);
    if (forced.empty()) break;
    for (const TokenId token : forced) {
      if (static_cast<int>(chain.size()) == k) break;
      AppendUndrawn(token, request.params.rule(), chain);
      Spell(token, bytes);
    }
  }
  return chain;
}

void GrammarDrafter::Spell(TokenId token, std::vector<TokenId>& bytes) const {
  const std::vector<TokenId>& end_ids = generation_->request().end_ids;
  if (std::ranges::find(end_ids, token) != end_ids.end()) return bytes.push_back(kEndOfBytes);
  for (const char c : tokenizer_->TokenBytes(token)) bytes.push_back(static_cast<unsigned char>(c));
}

std::vector<TokenId> GrammarDrafter::Forced(const std::vector<TokenId>& bytes) {
  const std::string text = mask_->Forced(bytes);
  if (text.empty()) {
    const bool must_end = mask_->OnlyToken(bytes) == kEndOfBytes;
    // If there are several end ids, takes the last: models list the end of a turn after the end of all text.
    return must_end ? std::vector<TokenId>{generation_->request().end_ids.back()} : std::vector<TokenId>();
  }
  const absl::StatusOr<std::vector<TokenId>> tokens = tokenizer_->Encode(text, /*add_special_tokens=*/false);
  if (!tokens.ok()) return {};
  // Some tokenizers prepend a space, or cannot encode a part of a character. Then nothing is drafted.
  std::string spelled;
  for (const TokenId token : *tokens) spelled += tokenizer_->TokenBytes(token);
  return spelled == text ? *tokens : std::vector<TokenId>();
}

}  // namespace outrider
