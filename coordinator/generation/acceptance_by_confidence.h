// How often drafted tokens are accepted, by how sure the draft was of them.
#pragma once

#include <array>
#include <cmath>
#include <span>

#include "common/spec/draft_stop.h"
#include "common/spec/proposal.h"

namespace outrider {

// Acceptance by the confidence of the draft in its token. It does not depend on where drafts end: a draft
// that ends where it is unsure (draft_stop.h) would look too good in a mean over all tokens. One thread.
class AcceptanceByConfidence {
 public:
  static constexpr int kBins = 8;
  // The bin of tokens of unknown confidence.
  static constexpr int kUnknown = kBins;

  // Each round multiplies the weight of the earlier ones by `decay`.
  explicit AcceptanceByConfidence(double decay) : decay_(decay) {}

  // Observes a round with a chain. Tokens after the first rejected one tell nothing.
  void Observe(std::span<const ProposalNode> chain, size_t accepted) {
    Age(1);
    for (size_t i = 0; i < chain.size() && i <= accepted; ++i) {
      Bin& bin = bins_[static_cast<size_t>(BinOf(chain[i].confidence))];
      bin.judged += 1;
      bin.accepted += i < accepted ? 1 : 0;
    }
  }
  // Ages the counts as if that many rounds had passed.
  void Age(double rounds) {
    const double factor = std::pow(decay_, rounds);
    for (Bin& bin : bins_) {
      bin.judged *= factor;
      bin.accepted *= factor;
    }
  }

  // Tokens of a bin in [0, kBins] that were judged, and those of them that were accepted.
  double judged(int bin) const { return bins_[static_cast<size_t>(bin)].judged; }
  double accepted(int bin) const { return bins_[static_cast<size_t>(bin)].accepted; }

  static int BinOf(float confidence) { return confidence > 0 ? ConfidenceBin(confidence, kBins) : kUnknown; }

 private:
  struct Bin {
    double judged = 0, accepted = 0;
  };
  double decay_;
  std::array<Bin, kBins + 1> bins_;
};

}  // namespace outrider
