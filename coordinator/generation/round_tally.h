// The counts of a round, in one place for the answer's statistics, the metrics and the policy.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "common/spec/averages.h"
#include "common/spec/proposal.h"
#include "outrider/v1/inference.pb.h"

namespace outrider {

struct OfferedNode {
  int depth = 0;
  int rank = 0;  // its place among its siblings
  bool accepted = false;
};

// The nodes whose parent is the last committed token or on `path`, in order. In a chain all have rank 0.
inline std::vector<OfferedNode> OfferedNodes(std::span<const ProposalNode> proposal,
                                             std::span<const int> path) {
  std::vector<OfferedNode> offered;
  std::vector<int> ranks(path.size() + 1);
  for (size_t i = 0; i < proposal.size(); ++i) {
    for (size_t depth = 0; depth <= path.size(); ++depth) {
      if (proposal[i].parent != (depth == 0 ? -1 : path[depth - 1])) continue;
      const bool accepted = depth < path.size() && path[depth] == static_cast<int>(i);
      offered.push_back({static_cast<int>(depth), ranks[depth]++, accepted});
    }
  }
  return offered;
}

// The counts of a round with a proposal.
struct RoundTally {
  bool is_tree = false;
  std::vector<int> depths = {};           // of each drafted token
  int accepted = 0;                       // accepted tokens up to the end of the text
  int accepted_after_end = 0;             // accepted tokens after it
  std::vector<OfferedNode> offered = {};  // for a tree; else empty
};

inline void AddAt(int index, uint64_t count, google::protobuf::RepeatedField<uint64_t>* counts) {
  while (counts->size() <= index) counts->Add(0);
  *counts->Mutable(index) += count;
}

// Adds the counts of a round with a proposal. The caller counts `rounds`.
inline void AddTally(const RoundTally& tally, v1::SpeculationStats* stats) {
  stats->set_drafts(stats->drafts() + 1);
  const double share = static_cast<double>(tally.accepted) / static_cast<double>(tally.depths.size());
  const double mean = stats->mean_round_acceptance();
  stats->set_mean_round_acceptance(mean + (share - mean) / static_cast<double>(stats->drafts()));
  AddAt(tally.accepted, 1, stats->mutable_rounds_per_accepted());
  stats->set_drafted(stats->drafted() + tally.depths.size());
  stats->set_accepted(stats->accepted() + static_cast<uint64_t>(tally.accepted));
  stats->set_accepted_after_end(stats->accepted_after_end() +
                                static_cast<uint64_t>(tally.accepted_after_end));
  for (const int depth : tally.depths) {
    AddAt(depth, 1, stats->mutable_drafted_per_position());
    AddAt(depth, 0, stats->mutable_accepted_per_position());
  }
  for (int depth = 0; depth < tally.accepted; ++depth)
    AddAt(depth, 1, stats->mutable_accepted_per_position());
  if (tally.is_tree) stats->set_tree_rounds(stats->tree_rounds() + 1);
  for (const OfferedNode& node : tally.offered) {
    AddAt(node.rank, 1, stats->mutable_offered_per_rank());
    AddAt(node.rank, node.accepted ? 1 : 0, stats->mutable_accepted_per_rank());
  }
}

// Adds a generation's counts to `sum`, which begins with exact = true and stays exact if each of them is.
inline void AddCounts(const v1::SpeculationStats& stats, v1::SpeculationStats* sum) {
  if (const uint64_t drafts = sum->drafts() + stats.drafts(); drafts > 0) {
    const double shares = sum->mean_round_acceptance() * static_cast<double>(sum->drafts()) +
                          stats.mean_round_acceptance() * static_cast<double>(stats.drafts());
    sum->set_mean_round_acceptance(shares / static_cast<double>(drafts));
  }
  for (int i = 0; i < stats.rounds_per_accepted_size(); ++i) {
    AddAt(i, stats.rounds_per_accepted(i), sum->mutable_rounds_per_accepted());
  }
  for (int i = 0; i < stats.drafted_per_position_size(); ++i) {
    AddAt(i, stats.drafted_per_position(i), sum->mutable_drafted_per_position());
  }
  sum->set_rounds(sum->rounds() + stats.rounds());
  sum->set_drafts(sum->drafts() + stats.drafts());
  sum->set_drafted(sum->drafted() + stats.drafted());
  sum->set_accepted(sum->accepted() + stats.accepted());
  sum->set_accepted_after_end(sum->accepted_after_end() + stats.accepted_after_end());
  sum->set_ahead_rounds(sum->ahead_rounds() + stats.ahead_rounds());
  sum->set_ahead_hits(sum->ahead_hits() + stats.ahead_hits());
  sum->set_tree_rounds(sum->tree_rounds() + stats.tree_rounds());
  sum->set_prediction_tokens(sum->prediction_tokens() + stats.prediction_tokens());
  sum->set_accepted_prediction_tokens(sum->accepted_prediction_tokens() + stats.accepted_prediction_tokens());
  sum->set_exact(sum->exact() && stats.exact());
}

// accepted / drafted; 0 when nothing was drafted.
inline double AcceptanceRate(const v1::SpeculationStats& stats) {
  if (stats.drafted() == 0) return 0;
  return static_cast<double>(stats.accepted()) / static_cast<double>(stats.drafted());
}

// 1 + accepted / drafts; 1 when nothing was drafted.
inline double MeanAcceptedLength(const v1::SpeculationStats& stats) {
  if (stats.drafts() == 0) return 1;
  return 1 + static_cast<double>(stats.accepted()) / static_cast<double>(stats.drafts());
}

inline v1::Schedule ScheduleOf(const v1::SpeculationStats& stats) {
  return stats.ahead_rounds() > 0 ? v1::SCHEDULE_RUN_AHEAD : v1::SCHEDULE_LOCKSTEP;
}

// Acceptance by the confidence of the draft in its token. It does not depend on where drafts end: a draft
// that ends where it is unsure (DraftStop) would look too good in a mean over all tokens. One thread.
class AcceptanceByConfidence {
 public:
  static constexpr int kBins = 8;
  static constexpr int kUnknown = kBins;  // the bin of tokens of unknown confidence

  // Each round multiplies the weight of the earlier ones by `decay`.
  explicit AcceptanceByConfidence(double decay) { bins_.fill(RunningMean(decay)); }

  // Observes a round with a chain. Tokens after the first rejected one tell nothing.
  void Observe(std::span<const ProposalNode> chain, size_t accepted) {
    Age(1);
    for (size_t i = 0; i < chain.size() && i <= accepted; ++i) {
      bins_[static_cast<size_t>(BinOf(chain[i].confidence))].Add(i < accepted ? 1 : 0);
    }
  }
  void Age(double rounds) {
    for (RunningMean& bin : bins_) bin.Age(rounds);
  }

  // Tokens of a bin in [0, kBins] that were judged, and those of them that were accepted.
  double judged(int bin) const { return Of(bin).weight(); }
  double accepted(int bin) const { return Of(bin).sum(); }
  // The accepted share of them.
  const RunningMean& Of(int bin) const { return bins_[static_cast<size_t>(bin)]; }

  static int BinOf(float confidence) { return confidence > 0 ? ConfidenceBin(confidence, kBins) : kUnknown; }

 private:
  std::array<RunningMean, kBins + 1> bins_;
};

}  // namespace outrider
