#include "common/engine/proposers/tree_growth.h"

#include <algorithm>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "common/spec/draft_stop.h"
#include "common/spec/proposal.h"
#include "common/spec/siblings.h"

namespace outrider {
namespace {

// How likely the first child of a row's point mass stands, by how far the row prefers it to the next token:
// with the shipped pair at temperature 0 it fails about half as often as the square of the ratio of the two.
double FirstStands(float confidence) {
  const double ratio = (1 - confidence) / confidence;
  return 1 - ratio * ratio / 2;
}

// How likely the path to each node stands.
std::vector<double> Stands(std::span<const ProposalNode> proposal) {
  std::vector<double> stands;
  std::vector<int> children(proposal.size() + 1, 0);
  for (const ProposalNode& node : proposal) {
    const double parent = node.parent < 0 ? 1 : stands[static_cast<size_t>(node.parent)];
    const double first = node.confidence > 0 ? FirstStands(node.confidence) : kFirstChildStands;
    stands.push_back(parent * ChildStands(children[static_cast<size_t>(node.parent + 1)]++, first));
  }
  return stands;
}

// Of the last `parents` nodes, or with level 0 of the last committed token.
std::vector<double> StandsOfLevel(int level, std::span<const ProposalNode> proposal, int parents) {
  if (level == 0) return {1.0};
  std::vector<double> stands = Stands(proposal);
  stands.erase(stands.begin(), stands.end() - parents);
  return stands;
}

// Where nothing is drawn, a budget's nodes go where the draft is unsure.
bool LooksAtConfidence(const TreeGrowth& growth) {
  return growth.controls.greedy() && std::holds_alternative<NodeBudget>(growth.shape);
}

// Shapes the row after a node (-1: after the last committed token).
absl::StatusOr<WeightRow> ShapeRow(Controls& controls, const SequenceState& sequence, int node,
                                   absl::Span<float> logits) {
  const std::vector<TokenId> path = node < 0 ? std::vector<TokenId>() : sequence.PathTo(node);
  const std::span<const TokenId> context = node < 0 ? sequence.tokens() : path;
  return controls.Apply(context, {logits.data(), logits.size()});
}

// Adds the children of a node (-1: of the last committed token), which are at `position`, to the proposal.
// `confidence`: 0 if it is not known.
void DrawChildren(const TreeShape& shape, SequenceState& sequence, size_t position, int parent, int count,
                  const WeightRow& row, float confidence) {
  const SequenceParams& params = sequence.params();
  Proposal& proposal = sequence.answer().proposal;
  const SiblingDraw draw{.rule = params.rule,
                         .top_n = params.draft_top_n,
                         .count = count,
                         .independent = std::holds_alternative<Chains>(shape)};
  PhiloxNoise noise(params.key, static_cast<uint64_t>(sequence.committed()));
  for (ProposalNode& child : ProposeSiblings(draw, row, params.key, position, proposal.size(), noise)) {
    child.parent = parent;
    child.confidence = confidence;
    proposal.push_back(std::move(child));
  }
}

}  // namespace

absl::StatusOr<int> DrawLevel(const TreeGrowth& growth, SequenceState& sequence, const LogitsView& rows) {
  Proposal& proposal = sequence.answer().proposal;
  const int level = Depth(proposal);
  const int before = static_cast<int>(proposal.size());
  const int first_parent = before - rows.rows;  // -1 at level 0
  std::vector<absl::StatusOr<WeightRow>> shaped;
  for (int r = 0; r < rows.rows; ++r) {
    shaped.push_back(ShapeRow(growth.controls, sequence, first_parent + r, rows.row(r)));
  }
  if (level == 0 && !shaped[0].ok()) return shaped[0].status();

  std::vector<float> confidences(shaped.size(), 0);
  std::vector<double> first_stands(shaped.size(), kFirstChildStands);
  for (size_t r = 0; r < shaped.size() && LooksAtConfidence(growth); ++r) {
    if (!shaped[r].ok()) continue;
    confidences[r] = Confidence(*shaped[r]);
    first_stands[r] = FirstStands(confidences[r]);
  }
  const std::vector<int> children = ChildrenOfLevel(growth.shape, level, growth.depth,
                                                    StandsOfLevel(level, proposal, rows.rows), first_stands);
  const size_t position = level == 0 ? sequence.tokens().size() : sequence.PathTo(first_parent).size();
  for (size_t r = 0; r < shaped.size(); ++r) {
    // What was drafted before is not to be lost for what it is: the node stays a leaf.
    if (!shaped[r].ok()) continue;
    DrawChildren(growth.shape, sequence, position, first_parent + static_cast<int>(r), children[r],
                 *shaped[r], confidences[r]);
  }
  return static_cast<int>(proposal.size()) - before;
}

bool GrowsOn(const TreeGrowth& growth, const SequenceState& sequence, int drawn) {
  const Proposal& proposal = sequence.answer().proposal;
  const int levels = Depth(proposal);
  if (drawn == 0 || levels == growth.depth) return false;
  const std::vector<int> next =
      ChildrenOfLevel(growth.shape, levels, growth.depth, StandsOfLevel(levels, proposal, drawn));
  return std::any_of(next.begin(), next.end(), [](int count) { return count > 0; });
}

void AppendLevel(SequenceState& sequence, int drawn) {
  const Proposal& proposal = sequence.answer().proposal;
  for (auto node = proposal.end() - drawn; node != proposal.end(); ++node) {
    sequence.AppendNode(node->token, node->parent);
  }
}

}  // namespace outrider
