#include "coordinator/generation/round_tally.h"

#include <algorithm>

namespace outrider {
namespace {

using Counts = google::protobuf::RepeatedField<uint64_t>;

// Makes room for an index.
void Extend(int index, Counts* counts) {
  while (counts->size() <= index) counts->Add(0);
}

}  // namespace

RoundTally TallyOf(std::span<const ProposalNode> proposal, std::span<const int> path, size_t standing) {
  RoundTally tally{.is_tree = !IsChain(proposal),
                   .depths = Depths(proposal),
                   .accepted = static_cast<int>(standing),
                   .accepted_after_end = static_cast<int>(path.size() - standing),
                   .offered = {}};
  if (tally.is_tree) tally.offered = OfferedNodes(proposal, path.first(standing));
  return tally;
}

void AddTally(const RoundTally& tally, v1::SpeculationStats* stats) {
  stats->set_drafts(stats->drafts() + 1);
  stats->set_drafted(stats->drafted() + tally.depths.size());
  stats->set_accepted(stats->accepted() + static_cast<uint64_t>(tally.accepted));
  stats->set_accepted_after_end(stats->accepted_after_end() +
                                static_cast<uint64_t>(tally.accepted_after_end));
  for (const int depth : tally.depths) {
    Extend(depth, stats->mutable_drafted_per_position());
    Extend(depth, stats->mutable_accepted_per_position());
    ++*stats->mutable_drafted_per_position()->Mutable(depth);
  }
  for (int depth = 0; depth < tally.accepted; ++depth) {
    ++*stats->mutable_accepted_per_position()->Mutable(depth);
  }
  if (tally.is_tree) stats->set_tree_rounds(stats->tree_rounds() + 1);
  for (const OfferedNode& node : tally.offered) {
    Extend(node.rank, stats->mutable_offered_per_rank());
    Extend(node.rank, stats->mutable_accepted_per_rank());
    ++*stats->mutable_offered_per_rank()->Mutable(node.rank);
    *stats->mutable_accepted_per_rank()->Mutable(node.rank) += node.accepted ? 1 : 0;
  }
}

void AddCounts(const v1::SpeculationStats& stats, v1::SpeculationStats* sum) {
  sum->set_rounds(sum->rounds() + stats.rounds());
  sum->set_drafts(sum->drafts() + stats.drafts());
  sum->set_drafted(sum->drafted() + stats.drafted());
  sum->set_accepted(sum->accepted() + stats.accepted());
  sum->set_accepted_after_end(sum->accepted_after_end() + stats.accepted_after_end());
  sum->set_ahead_rounds(sum->ahead_rounds() + stats.ahead_rounds());
  sum->set_ahead_hits(sum->ahead_hits() + stats.ahead_hits());
  sum->set_tree_rounds(sum->tree_rounds() + stats.tree_rounds());
  sum->set_exact(sum->exact() && stats.exact());
}

}  // namespace outrider
