// What follows from the counts of SpeculationStats.
#pragma once

#include "outrider/v1/inference.pb.h"

namespace outrider {

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

// What was followed.
inline v1::Schedule ScheduleOf(const v1::SpeculationStats& stats) {
  return stats.ahead_rounds() > 0 ? v1::SCHEDULE_RUN_AHEAD : v1::SCHEDULE_LOCKSTEP;
}

// Counts of several generations together, which are exact if each is. `sum` begins with exact = true.
inline void AddCounts(const v1::SpeculationStats& stats, v1::SpeculationStats* sum) {
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
