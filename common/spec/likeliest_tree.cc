#include "common/spec/likeliest_tree.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "common/spec/weights.h"

namespace outrider {
namespace {

bool IsLessLikely(const ProposalNode& a, const ProposalNode& b) {
  return a.path_log_probability < b.path_log_probability;
}

// Returns the `count` candidates of highest value, or all, in ascending order. Ties go to the lower index.
std::vector<int> Likeliest(const Proposal& tree, std::vector<int> candidates, size_t count) {
  std::stable_sort(candidates.begin(), candidates.end(), [&](int a, int b) {
    return IsLessLikely(tree[static_cast<size_t>(b)], tree[static_cast<size_t>(a)]);
  });
  candidates.resize(std::min(candidates.size(), count));
  std::sort(candidates.begin(), candidates.end());
  return candidates;
}

// Removes a token from q. Sets `total` to 0 if nothing is left.
void Remove(TokenId token, Distribution& q) {
  if (q.form == Distribution::Form::kDense) {
    q.weights[token] = 0;
  } else {
    const auto entry = std::lower_bound(q.ids.begin(), q.ids.end(), token) - q.ids.begin();
    q.ids.erase(q.ids.begin() + entry);
    q.weights.erase(q.weights.begin() + entry);
  }
  q.total = SumWeights(q.weights);
}

}  // namespace

void SetValues(const WeightRow& row, double temperature, double parent, std::vector<ProposalNode>& children) {
  const double scale = 1 / std::max(temperature, kLeastValueTemperature);
  const float most = row.logits[static_cast<size_t>(row.point_mass)];
  double total = 0;
  for (const float logit : row.logits) total += std::exp(scale * (logit - most));
  for (ProposalNode& child : children) {
    const double share = scale * (row.logits[static_cast<size_t>(child.token)] - most) - std::log(total);
    child.path_log_probability = parent + std::min(share, 0.0);
  }
  std::erase_if(children, [](const ProposalNode& child) { return std::isinf(child.path_log_probability); });
}

void KeepLikeliest(int nodes, Proposal& tree) {
  std::vector<int> all(tree.size());
  std::iota(all.begin(), all.end(), 0);
  std::vector<int> place(tree.size(), -1);
  Proposal kept;
  for (const int node : Likeliest(tree, std::move(all), static_cast<size_t>(nodes))) {
    place[static_cast<size_t>(node)] = static_cast<int>(kept.size());
    kept.push_back(std::move(tree[static_cast<size_t>(node)]));
    int& parent = kept.back().parent;
    if (parent >= 0) parent = place[static_cast<size_t>(parent)];
  }
  tree = std::move(kept);
}

std::vector<int> NodesToExpand(const Proposal& tree, int level_nodes, int nodes, int depth) {
  double least = -std::numeric_limits<double>::infinity();
  if (std::ssize(tree) >= nodes) {
    least = std::min_element(tree.begin(), tree.end(), IsLessLikely)->path_log_probability;
  }
  std::vector<int> candidates;
  for (size_t node = tree.size() - static_cast<size_t>(level_nodes); node < tree.size(); ++node) {
    // A child of the unlikeliest node is no likelier, and comes after it.
    if (tree[node].path_log_probability > least) candidates.push_back(static_cast<int>(node));
  }
  // The depth - 1 levels that are expanded have at most `nodes` rows together.
  const int width = std::max(1, nodes / std::max(1, depth - 1));
  return Likeliest(tree, std::move(candidates), static_cast<size_t>(width));
}

std::vector<ProposalNode> ProposeSiblings(const SiblingDraw& draw, const WeightRow& row, const RandomKey& key,
                                          uint64_t position, uint64_t first_candidate, Noise& noise) {
  if (draw.count <= 0) return {};
  std::vector<ProposalNode> siblings;
  if (draw.rule == Rule::kCoupled || row.point_mass >= 0) {
    siblings.push_back(Propose(draw.rule, row, draw.top_n, position, noise));
    const TokenId first = siblings[0].token;
    for (TokenId token : Alternatives(draw.rule, row, key, position, first, draw.count - 1)) {
      Distribution q;
      if (draw.rule != Rule::kCoupled)
        q = {.form = Distribution::Form::kPointMass, .ids = {token}, .total = 1};
      siblings.push_back({.token = token, .q = std::move(q)});
    }
    return siblings;
  }
  Distribution q = TruncateTopN(row, draw.top_n);
  for (int i = 0; i < draw.count && q.total > 0; ++i) {
    const TokenId token = noise.Decide(Purpose::kDraft, position, first_candidate + static_cast<uint64_t>(i),
                                       [&](double u) { return Sample(q, u); });
    siblings.push_back({.token = token, .q = q});
    if (!draw.independent) Remove(token, q);
  }
  return siblings;
}

}  // namespace outrider
