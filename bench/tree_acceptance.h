// Tokens per target call for a tree's shape, and how often its nodes are accepted, by depth and rank.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "common/spec/proposal.h"
#include "coordinator/generation/round_tally.h"
#include "outrider/v1/inference.pb.h"

namespace outrider {

// Sums over full rounds: left out are the prompt's, and rounds near the end that had fewer tokens left to
// draft.
class TreeAcceptance {
 public:
  // `depth` is that of a full round.
  explicit TreeAcceptance(int depth) : depth_(depth), levels_(static_cast<size_t>(depth)) {}

  void Add(const v1::RoundTrace& trace) {
    Proposal proposal;
    for (int i = 0; i < trace.drafted_size(); ++i) {
      const int parent = trace.parents().empty() ? i - 1 : trace.parents(i);
      proposal.push_back({.token = static_cast<TokenId>(trace.drafted(i)), .parent = parent, .q = {}});
    }
    if (trace.round() == 0 || Depth(proposal) < depth_) return;
    std::vector<int> path(trace.path().begin(), trace.path().end());
    if (trace.parents().empty()) {
      for (int i = 0; i < static_cast<int>(trace.accepted()); ++i) path.push_back(i);
    }
    ++rounds_;
    nodes_ += static_cast<double>(proposal.size());
    tokens_ += static_cast<double>(path.size()) + 1;
    AddLevels(proposal, path);
  }

  double tokens_per_call() const { return tokens_ / rounds_; }
  double nodes_per_call() const { return nodes_ / rounds_; }
  // The standard error of tokens_per_call().
  double StandardError() const {
    double squares = 0, below = rounds_;
    for (size_t d = 0; d < levels_.size(); ++d) {  // by the number of accepted tokens
      squares += (below - levels_[d].stood) * (1 + static_cast<double>(d)) * (1 + static_cast<double>(d));
      below = levels_[d].stood;
    }
    squares += below * (1.0 + depth_) * (1.0 + depth_);
    const double mean = tokens_per_call();
    return std::sqrt((squares / rounds_ - mean * mean) / rounds_);
  }

  // The share of the positions with children at this depth where a child was accepted.
  double Stands(int depth) const { return At(depth).stood / At(depth).positions; }
  // The share of these positions where the first child was accepted: alpha.
  double FirstStands(int depth) const { return Share(At(depth).ranks[0]); }
  // The mean over these positions of 1 - (1 - alpha)^m, with the number m of children of each: the share that
  // independent siblings would give, each accepted with probability alpha.
  double IndependentBound(int depth) const {
    const Level& level = At(depth);
    double bound = 0;
    for (size_t m = 1; m < level.children.size(); ++m) {
      bound += level.children[m] * (1 - std::pow(1 - FirstStands(depth), static_cast<double>(m)));
    }
    return bound / level.positions;
  }
  // Mean number of nodes at this depth.
  double Width(int depth) const { return At(depth).nodes / rounds_; }
  int depth() const { return depth_; }

  nlohmann::ordered_json Json() const {
    nlohmann::ordered_json report = {{"tokens_per_call", tokens_per_call()},
                                     {"standard_error", StandardError()},
                                     {"nodes_per_call", nodes_per_call()}};
    for (int d = 0; d < depth_; ++d) {
      nlohmann::ordered_json level = {
          {"width", Width(d)}, {"stands", Stands(d)}, {"independent_bound", IndependentBound(d)}};
      for (const Rank& rank : At(d).ranks) level["accepted_by_rank"].push_back(Share(rank));
      report["depths"].push_back(std::move(level));
    }
    return report;
  }

 private:
  struct Rank {
    double offered = 0, accepted = 0;
  };
  struct Level {
    double positions = 0, stood = 0, nodes = 0;
    std::vector<double> children;  // positions by their number of children
    std::vector<Rank> ranks;
  };

  static double Share(const Rank& rank) { return rank.accepted / rank.offered; }
  const Level& At(int depth) const { return levels_[static_cast<size_t>(depth)]; }

  void AddLevels(const Proposal& proposal, const std::vector<int>& path) {
    std::vector<size_t> children(path.size() + 1);
    for (const OfferedNode& node : OfferedNodes(proposal, path)) {
      const auto depth = static_cast<size_t>(node.depth), rank = static_cast<size_t>(node.rank);
      std::vector<Rank>& ranks = levels_[depth].ranks;
      if (ranks.size() <= rank) ranks.resize(rank + 1);
      ++ranks[rank].offered;
      ranks[rank].accepted += node.accepted ? 1 : 0;
      ++children[depth];
    }
    for (size_t d = 0; d < std::min(children.size(), levels_.size()); ++d) {
      Level& level = levels_[d];
      ++level.positions;
      level.stood += d < path.size() ? 1 : 0;
      if (level.children.size() <= children[d]) level.children.resize(children[d] + 1);
      ++level.children[children[d]];
    }
    for (const int depth : Depths(proposal)) ++levels_[static_cast<size_t>(depth)].nodes;
  }

  int depth_;
  double rounds_ = 0, nodes_ = 0, tokens_ = 0;
  std::vector<Level> levels_;
};

}  // namespace outrider
