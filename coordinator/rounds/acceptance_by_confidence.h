// How often drafted tokens were accepted, by how sure the draft was of them.
//
// What a draft does after a token of some confidence is no part of it, so that drafts that end early where
// the draft is unsure (draft_stop.h) do not make it look better than it is, as they would a mean over all
// tokens.
#pragma once

#include <array>
#include <cmath>
#include <span>

#include "common/spec/draft_stop.h"
#include "common/spec/proposal.h"

namespace outrider {

class AcceptanceByConfidence {
 public:
  static constexpr int kBins = 8;
  // The bin of tokens whose confidence is not known.
  static constexpr int kUnknown = kBins;

  // A round counts `decay` times as much after each that follows.
  explicit AcceptanceByConfidence(double decay) : decay_(decay) {}

  // A round with a chain, of which so many tokens were accepted. What follows the first that was not tells
  // nothing.
  void Observe(std::span<const ProposalNode> chain, size_t accepted) {
    Age(1);
    for (size_t i = 0; i < chain.size() && i <= accepted; ++i) {
      Bin& bin = bins_[static_cast<size_t>(BinOf(chain[i].confidence))];
      bin.judged += 1;
      bin.accepted += i < accepted ? 1 : 0;
    }
  }
  // As if so many rounds had passed.
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
