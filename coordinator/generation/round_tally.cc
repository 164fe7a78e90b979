#include "coordinator/generation/round_tally.h"

namespace outrider {
namespace {

// Adds to the count at an index, which may be beyond the last.
void Add(uint64_t count, int index, google::protobuf::RepeatedField<uint64_t>* counts) {
  while (counts->size() <= index) counts->Add(0);
  *counts->Mutable(index) += count;
}

}  // namespace

void AddTally(const RoundTally& tally, v1::SpeculationStats* stats) {
  stats->set_drafts(stats->drafts() + 1);
  stats->set_drafted(stats->drafted() + tally.depths.size());
  stats->set_accepted(stats->accepted() + static_cast<uint64_t>(tally.accepted));
  stats->set_accepted_after_end(stats->accepted_after_end() +
                                static_cast<uint64_t>(tally.accepted_after_end));
  for (const int depth : tally.depths) {
    Add(1, depth, stats->mutable_drafted_per_position());
    Add(0, depth, stats->mutable_accepted_per_position());
  }
  for (int depth = 0; depth < tally.accepted; ++depth) Add(1, depth, stats->mutable_accepted_per_position());
  if (tally.is_tree) stats->set_tree_rounds(stats->tree_rounds() + 1);
  for (const OfferedNode& node : tally.offered) {
    Add(1, node.rank, stats->mutable_offered_per_rank());
    Add(node.accepted ? 1 : 0, node.rank, stats->mutable_accepted_per_rank());
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
