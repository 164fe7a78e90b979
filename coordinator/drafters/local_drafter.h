// A drafter that needs nobody but the committed tokens.
#pragma once

#include <chrono>
#include <vector>

#include "coordinator/rounds/drafter.h"

namespace outrider {

class LocalDrafter : public Drafter {
 public:
  // The proposal, at once.
  virtual Proposal Draft(const Generation& generation, int k) = 0;

  void Begin(Generation& /*generation*/, const DraftLength& length) final { k_ = length.most; }
  asio::awaitable<Proposal> Take(Generation& generation, v1::ItemTiming* timing) final {
    const Clock::time_point start = Clock::now();
    Proposal proposal = Draft(generation, k_);
    const auto took = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start);
    timing->set_compute_us(static_cast<uint32_t>(took.count()));
    co_return proposal;
  }

  // What it knows of a verdict are the tokens that were committed.
  void OnVerdict(size_t /*n*/, const Verdict& /*verdict*/) final {}
  void Stop(const Generation& /*generation*/) final {}

 private:
  int k_ = 0;
};

// A chain of tokens that were chosen without chance: q is all on the token itself, absent where the rule
// takes none.
inline Proposal PointMasses(const std::vector<TokenId>& tokens, v1::Rule rule) {
  Proposal proposal;
  for (TokenId token : tokens) {
    Distribution q;
    if (rule != v1::RULE_COUPLED) q = {.form = Distribution::Form::kPointMass, .ids = {token}, .total = 1};
    AppendToChain(token, std::move(q), proposal);
  }
  return proposal;
}

}  // namespace outrider
