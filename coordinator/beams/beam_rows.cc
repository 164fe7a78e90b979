#include "coordinator/beams/beam_rows.h"

#include <algorithm>
#include <utility>

namespace outrider {
namespace {

// Where a live text is among the nodes of the text that it came from.
struct Place {
  int origin = 0;
  int node = -1;  // -1: it is that text
};

// The child of `parent` that holds `token`; -1 if there is none.
int ChildOf(const Proposal& proposal, int parent, TokenId token) {
  const auto child = std::find_if(proposal.begin(), proposal.end(), [&](const ProposalNode& node) {
    return node.parent == parent && node.token == token;
  });
  return child == proposal.end() ? -1 : static_cast<int>(child - proposal.begin());
}

}  // namespace

std::vector<int> PathAlong(const Proposal& proposal, std::span<const TokenId> tokens) {
  std::vector<int> path;
  int node = -1;
  for (const TokenId token : tokens) {
    node = ChildOf(proposal, node, token);
    if (node < 0) break;
    path.push_back(node);
  }
  return path;
}

BeamProgress AdvanceBeams(std::span<const BeamRows> beams, BeamSearch& search) {
  BeamProgress progress;
  std::vector<Place> places;
  for (size_t i = 0; i < beams.size(); ++i) places.push_back({.origin = static_cast<int>(i)});
  bool covered = true;
  while (covered && !search.over()) {
    std::vector<const CandidateRow*> rows;
    for (const Place& place : places) {
      rows.push_back(&beams[static_cast<size_t>(place.origin)].rows[static_cast<size_t>(place.node + 1)]);
    }
    search.Step(rows);
    ++progress.steps;
    std::vector<Place> next;
    for (const BeamSearch::Live& live : search.live()) {
      const Place& before = places[static_cast<size_t>(live.parent)];
      const Proposal& proposal = *beams[static_cast<size_t>(before.origin)].proposal;
      next.push_back({before.origin, ChildOf(proposal, before.node, live.tokens.back())});
      covered = covered && next.back().node >= 0;
    }
    places = std::move(next);
  }
  for (const Place& place : places) progress.origins.push_back(place.origin);
  return progress;
}

}  // namespace outrider
