// Generations for tests of drafters, and the tokens of proposals.
#pragma once

#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "common/spec/proposal.h"
#include "coordinator/generation/generation.h"
#include "tests/unit/test_tokenizer.h"

namespace outrider {

using Tokens = std::vector<TokenId>;

// Sampled at temperature 1 with the seed, or greedy without one.
inline Generation GenerationAfter(Tokens prompt, v1::Rule rule = v1::RULE_TOKEN,
                                  std::optional<uint64_t> seed = {}) {
  Request request;
  request.params.set_rule(rule);
  request.params.mutable_sampling()->set_temperature(seed ? 1 : 0);
  request.params.set_seed(seed.value_or(0));
  request.prompt = std::move(prompt);
  request.max_tokens = 10'000;
  return Generation(std::move(request), &TestTokenizer(), Clock::now());
}

// A round that rejects every drafted token and ends in `token`.
inline void Reject(Generation& generation, const Proposal& draft, TokenId token) {
  Verdict verdict;
  verdict.token = token;
  if (!draft.empty()) verdict.kind = Verdict::Kind::kCorrected;
  generation.Commit(draft, verdict);
}

inline Tokens TokensOf(const Proposal& proposal) {
  Tokens tokens;
  for (const ProposalNode& node : proposal) tokens.push_back(node.token);
  return tokens;
}

inline Tokens RandomTokens(size_t count, TokenId vocab) {
  std::mt19937 random(7);
  Tokens tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(random() % static_cast<uint32_t>(vocab));
  return tokens;
}

}  // namespace outrider
