#include "coordinator/decode/beam_search.h"

#include <algorithm>
#include <tuple>

namespace outrider {
namespace {

// The node at which a live text ends, in the proposal for the old text that it extends.
struct Place {
  int origin = 0;
  int node = -1;  // -1: it is the old text itself
};

// The child of `parent` that holds `token`; -1 if there is none.
int ChildOf(const Proposal& proposal, int parent, TokenId token) {
  const auto child = std::ranges::find_if(
      proposal, [&](const ProposalNode& node) { return node.parent == parent && node.token == token; });
  return child == proposal.end() ? -1 : static_cast<int>(child - proposal.begin());
}

}  // namespace

std::vector<BeamSearch::Candidate> BeamSearch::Candidates(std::span<const CandidateRow* const> rows) const {
  std::vector<Candidate> candidates;
  for (size_t beam = 0; beam < live_.size(); ++beam) {
    for (const TokenLogProbability& next : *rows[beam]) {
      candidates.push_back({.beam = static_cast<int>(beam),
                            .token = next.token,
                            .log_probability = live_[beam].log_probability + next.log_probability});
    }
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return std::tuple(-a.log_probability, a.beam, a.token) < std::tuple(-b.log_probability, b.beam, b.token);
  });
  return candidates;
}

void BeamSearch::Step(std::span<const CandidateRow* const> rows) {
  const size_t width = static_cast<size_t>(options_.width);
  const bool full = live_.front().tokens.size() + 1 == static_cast<size_t>(options_.max_tokens);
  const std::vector<Candidate> candidates = Candidates(rows);
  std::vector<Live> next;
  for (size_t i = 0; i < candidates.size() && next.size() < width; ++i) {
    const Candidate& candidate = candidates[i];
    const bool ends = full || std::ranges::count(options_.end_ids, candidate.token) > 0;
    // A candidate that ends a text counts only if it is among the best `width` candidates.
    if (ends && i >= width) {
      if (full) break;
      continue;
    }
    std::vector<TokenId> tokens = live_[candidate.beam].tokens;
    tokens.push_back(candidate.token);
    if (ends) {
      Finish(std::move(tokens), candidate.log_probability);
    } else {
      next.push_back({std::move(tokens), candidate.log_probability, candidate.beam});
    }
  }
  live_ = std::move(next);
  over_ = live_.empty() || !CanImprove();
}

void BeamSearch::Finish(std::vector<TokenId> tokens, double log_probability) {
  const double score = Score(log_probability, tokens.size());
  const auto worse = std::ranges::find_if(
      finished_, [score](double other) { return other < score; }, &Finished::score);
  finished_.insert(worse, {std::move(tokens), score});
  if (finished_.size() > static_cast<size_t>(options_.width)) finished_.pop_back();
}

bool BeamSearch::CanImprove() const {
  if (finished_.size() < static_cast<size_t>(options_.width)) return true;
  if (options_.stop == v1::BEAM_STOP_FIRST) return false;
  const bool by_length = options_.stop == v1::BEAM_STOP_NEVER && options_.length_penalty > 0;
  const size_t length = by_length ? static_cast<size_t>(options_.max_tokens) : live_.front().tokens.size();
  return Score(live_.front().log_probability, length) > finished_.back().score;
}

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
    for (const Place& place : places) rows.push_back(&beams[place.origin].rows[place.node + 1]);
    search.Step(rows);
    ++progress.steps;
    std::vector<Place> next;
    for (const BeamSearch::Live& live : search.live()) {
      const Place& before = places[live.parent];
      const Proposal& proposal = *beams[before.origin].proposal;
      next.push_back({before.origin, ChildOf(proposal, before.node, live.tokens.back())});
      covered = covered && next.back().node >= 0;
    }
    places = std::move(next);
  }
  for (const Place& place : places) progress.origins.push_back(place.origin);
  return progress;
}

}  // namespace outrider
