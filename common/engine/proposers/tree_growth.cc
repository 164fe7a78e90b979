#include "common/engine/proposers/tree_growth.h"

#include <algorithm>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "common/spec/likeliest_tree.h"
#include "common/spec/proposal.h"

namespace outrider {
namespace {

// The budget of a tree whose tokens are taken and not drawn; 0: they are drawn, or the shape is fixed.
int BudgetToTake(const TreeGrowth& growth) {
  const auto* budget = std::get_if<NodeBudget>(&growth.shape);
  return growth.controls.greedy() && budget != nullptr ? budget->nodes : 0;
}

// The chances that the paths to the last `parents` nodes stand; at level 0, 1 for the last committed token.
std::vector<double> StandsOfLevel(int level, std::span<const ProposalNode> proposal, int parents) {
  if (level == 0) return {1.0};
  std::vector<double> stands;
  std::vector<int> children(proposal.size() + 1, 0);
  for (const ProposalNode& node : proposal) {
    const double parent = node.parent < 0 ? 1 : stands[static_cast<size_t>(node.parent)];
    stands.push_back(parent * ChildStands(children[static_cast<size_t>(node.parent + 1)]++));
  }
  stands.erase(stands.begin(), stands.end() - parents);
  return stands;
}

// The proposal's node for each node of the sequence's tree; -1 if it has left the proposal. Siblings have
// different tokens here.
std::vector<int> NodesInProposal(const SequenceState& sequence) {
  const Proposal& proposal = sequence.answer().proposal;
  const std::span<const int> parents = sequence.parents();
  const std::span<const TokenId> tokens = sequence.tokens().last(parents.size());
  std::vector<int> nodes;
  for (size_t i = 0; i < parents.size(); ++i) {
    const int parent = parents[i] < 0 ? -1 : nodes[static_cast<size_t>(parents[i])];
    const bool is_left_out = parents[i] >= 0 && parent < 0;
    const auto same = std::find_if(proposal.begin(), proposal.end(), [&](const ProposalNode& node) {
      return !is_left_out && node.parent == parent && node.token == tokens[i];
    });
    nodes.push_back(same == proposal.end() ? -1 : static_cast<int>(same - proposal.begin()));
  }
  return nodes;
}

// Shapes the row after a node of the sequence's tree (-1: after the last committed token).
absl::StatusOr<WeightRow> ShapeRow(Controls& controls, const SequenceState& sequence, int node,
                                   absl::Span<float> logits) {
  const std::vector<TokenId> path = node < 0 ? std::vector<TokenId>() : sequence.PathTo(node);
  const std::span<const TokenId> context = node < 0 ? sequence.tokens() : path;
  return controls.Apply(context, {logits.data(), logits.size()});
}

}  // namespace

absl::StatusOr<int> DrawLevel(const TreeGrowth& growth, SequenceState& sequence, const LogitsView& rows) {
  Proposal& proposal = sequence.answer().proposal;
  const int level = Depth(proposal);
  const int first = static_cast<int>(sequence.parents().size()) - rows.rows;  // -1 at level 0
  std::vector<absl::StatusOr<WeightRow>> shaped;
  for (int r = 0; r < rows.rows; ++r) {
    shaped.push_back(ShapeRow(growth.controls, sequence, first + r, rows.row(r)));
  }
  if (level == 0 && !shaped[0].ok()) return shaped[0].status();

  const int budget = BudgetToTake(growth);
  const std::vector<int> nodes = budget > 0 ? NodesInProposal(sequence) : std::vector<int>();
  const std::vector<int> counts =
      budget > 0
          ? std::vector<int>(shaped.size(), std::min(budget, kMaxBudgetChildren))
          : ChildrenOfLevel(growth.shape, level, growth.depth, StandsOfLevel(level, proposal, rows.rows));
  const size_t position = level == 0 ? sequence.tokens().size() : sequence.PathTo(first).size();
  const SequenceParams& params = sequence.params();
  SiblingDraw draw{.rule = params.rule,
                   .top_n = params.draft_top_n,
                   .independent = std::holds_alternative<Chains>(growth.shape)};
  PhiloxNoise noise(params.key, static_cast<uint64_t>(sequence.committed()));
  for (size_t r = 0; r < shaped.size(); ++r) {
    // Losing what was drafted before would bias the draft, so the node stays a leaf.
    if (!shaped[r].ok()) continue;
    int parent = first + static_cast<int>(r);
    draw.count = counts[r];
    std::vector<ProposalNode> children =
        ProposeSiblings(draw, *shaped[r], params.key, position, proposal.size(), noise);
    if (budget > 0 && level > 0) parent = nodes[static_cast<size_t>(parent)];
    if (budget > 0) {
      SetValues(*shaped[r], params.sampling.temperature,
                level == 0 ? 0 : proposal[static_cast<size_t>(parent)].path_log_probability, children);
    }
    for (ProposalNode& child : children) {
      child.parent = parent;
      proposal.push_back(std::move(child));
    }
  }
  if (budget > 0) KeepLikeliest(budget, proposal);
  const std::vector<int> depths = Depths(proposal);
  return static_cast<int>(std::count(depths.begin(), depths.end(), level));
}

int AppendLevel(const TreeGrowth& growth, SequenceState& sequence, int drawn) {
  const Proposal& proposal = sequence.answer().proposal;
  const int levels = Depth(proposal);
  if (drawn == 0 || levels == growth.depth) return 0;
  if (const int budget = BudgetToTake(growth)) {
    const std::vector<int> nodes = NodesInProposal(sequence);
    const std::vector<int> next = NodesToExpand(proposal, drawn, budget, growth.depth);
    for (const int node : next) {
      const int parent = proposal[static_cast<size_t>(node)].parent;
      const auto at = std::find(nodes.begin(), nodes.end(), parent);
      sequence.AppendNode(proposal[static_cast<size_t>(node)].token,
                          parent < 0 ? -1 : static_cast<int>(at - nodes.begin()));
    }
    return static_cast<int>(next.size());
  }
  const std::vector<int> next =
      ChildrenOfLevel(growth.shape, levels, growth.depth, StandsOfLevel(levels, proposal, drawn));
  if (std::none_of(next.begin(), next.end(), [](int count) { return count > 0; })) return 0;
  for (auto node = proposal.end() - drawn; node != proposal.end(); ++node) {
    sequence.AppendNode(node->token, node->parent);
  }
  return drawn;
}

}  // namespace outrider
