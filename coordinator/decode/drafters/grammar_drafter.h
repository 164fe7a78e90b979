// Drafts the text for which a grammar leaves no choice.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/grammar/grammar.h"
#include "common/text/tokenizer.h"
#include "coordinator/decode/drafters/local_drafters.h"

namespace outrider {

// Drafts the text that must come next, as the tokenizer splits it. The target may prefer other tokens that
// spell the same text. Drafting takes no step of a model.
class GrammarDrafter final : public LocalDrafter {
 public:
  // The generation's request must have a grammar over bytes (BytesVocabulary). `tokenizer` outlives this.
  GrammarDrafter(Generation* generation, const Tokenizer* tokenizer)
      : LocalDrafter(generation),
        tokenizer_(tokenizer),
        mask_(generation->request().grammar->NewGrammarMask()) {}

  Proposal Draft(int k) override;
  v1::DrafterKind kind() const override { return v1::DRAFTER_KIND_GRAMMAR; }

 private:
  // Adds the bytes of a token.
  void Spell(TokenId token, std::vector<TokenId>& bytes) const;
  // The tokens that must follow these bytes; none where there is a choice.
  std::vector<TokenId> Forced(const std::vector<TokenId>& bytes);

  const Tokenizer* const tokenizer_;
  const std::unique_ptr<GrammarMask> mask_;
  std::vector<TokenId> bytes_;  // of the committed output
  size_t spelled_ = 0;          // how many tokens of the output bytes_ covers
};

}  // namespace outrider
