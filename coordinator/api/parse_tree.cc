#include "coordinator/api/parse_request.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/rpc/drafters.h"
#include "common/rpc/error.h"
#include "common/rpc/names.h"
#include "common/spec/tree_shape.h"

namespace outrider {
namespace {

// The default depth of a tree whose shape does not say.
constexpr int kDepth = 4;

// Why there can be no tree at all; nullopt if there can.
std::optional<std::string> Obstacle(const TreeLimits& limits, const Request& request) {
  const v1::SequenceParams& params = request.params;
  const bool makes_trees =
      request.drafter == v1::DRAFTER_KIND_MODEL || ProposerOf(request.drafter) != v1::PROPOSER_UNSPECIFIED;
  if (!makes_trees) return absl::StrCat("drafter ", NameOf(request.drafter));
  if (params.rule() == v1::RULE_BLOCK) return "rule block";
  if (params.has_lenience() && params.lenience() < 1) return "lenience below 1";
  if (limits.target.max_tree_nodes() == 0) return "a target that takes none";
  const bool exact_bits = limits.is_greedy || params.rule() == v1::RULE_COUPLED;
  if (exact_bits && !limits.target.tree_row_invariant() && !limits.target.inexact_trees()) {
    return "a target that rounds trees otherwise than chains, under greedy decoding or rule coupled";
  }
  return std::nullopt;
}

// The K of a tree of this shape.
int DepthOf(const v1::SpeculationOptions& speculation, const TreeShape& shape, int max_draft_tokens,
            const Request& request) {
  if (speculation.has_draft_tokens()) return request.draft_tokens;
  const auto* branching = std::get_if<Branching>(&shape);
  const int depth = branching != nullptr ? static_cast<int>(branching->children.size())
                    : request.adaptive   ? kDepth
                                         : request.draft_tokens;
  return std::min(depth, max_draft_tokens);
}

// The greatest depth of a tree.
int MaxDepth(const v1::ServerInfo& target, const Request& request) {
  const v1::ProposerInfo* own = FindProposer(target, request.params.proposer());
  return static_cast<int>(own == nullptr ? target.max_draft_tokens()
                                         : std::min(own->max_draft_tokens(), target.max_draft_tokens()));
}

// A random order is exact for independent draws, and for tokens that were taken.
absl::Status ParseOrder(const v1::SpeculationOptions& speculation, const TreeLimits& limits,
                        Request& request) {
  if (!v1::SiblingOrder_IsValid(speculation.sibling_order())) {
    return FieldError("speculation.sibling_order", "given, random",
                      absl::StrCat("unknown value ", static_cast<int>(speculation.sibling_order())));
  }
  if (speculation.sibling_order() != v1::SIBLING_ORDER_RANDOM) return absl::OkStatus();
  v1::SequenceParams& params = request.params;
  if (params.rule() != v1::RULE_TOKEN) {
    return FieldError("speculation.sibling_order", absl::StrCat("given with rule ", NameOf(params.rule())),
                      "random");
  }
  const v1::ProposerInfo* own = FindProposer(limits.target, params.proposer());
  const bool takes = own != nullptr && own->greedy();
  const bool draws = params.has_draft_temperature() ? params.draft_temperature() > 0 : !limits.is_greedy;
  const bool without_replacement =
      request.chooses_tree || (request.tree && DrawsWithoutReplacement(*request.tree));
  if (draws && !takes && without_replacement) {
    return FieldError("speculation.sibling_order",
                      "given where siblings are drawn without replacement, as in all shapes but chains:N",
                      "random");
  }
  params.set_sibling_order(v1::SIBLING_ORDER_RANDOM);
  return absl::OkStatus();
}

}  // namespace

std::string ProblemOfTree(const std::string& tree) {
  if (tree == "none" || tree == "auto") return "";
  const absl::StatusOr<TreeShape> shape = ParseTreeShape(tree);
  return shape.ok() ? "" : std::string(shape.status().message());
}

absl::Status ParseTree(const v1::SpeculationOptions& speculation, const TreeLimits& limits,
                       Request& request) {
  constexpr char kField[] = "speculation.tree";
  const bool is_asked_for = !speculation.tree().empty();
  const std::string& text = is_asked_for ? speculation.tree() : limits.default_tree;
  const std::optional<std::string> obstacle = Obstacle(limits, request);
  const int max_nodes = static_cast<int>(limits.target.max_tree_nodes());
  if (text == "auto") {
    request.chooses_tree = !obstacle && limits.repeatable && request.draft_tokens > 0;
    request.max_tree_nodes = max_nodes;
  } else if (text != "none") {
    absl::StatusOr<TreeShape> shape = ParseTreeShape(text);
    if (!shape.ok()) {
      return FieldError(kField, "none, auto, or a shape such as 2x2x1, chains:3 or budget:12", text);
    }
    const bool drafts = request.draft_tokens > 0;
    if (obstacle && drafts && is_asked_for)
      return FieldError(kField, absl::StrCat("none with ", *obstacle), text);
    if (!obstacle && drafts) {
      const int depth = DepthOf(speculation, *shape, MaxDepth(limits.target, request), request);
      const int nodes = MaxNodes(*shape, depth);
      if (nodes > max_nodes && is_asked_for) {
        return FieldError(kField, absl::StrCat("at most ", max_nodes, " nodes"),
                          absl::StrCat(text, ", ", nodes, " nodes"));
      }
      if (nodes <= max_nodes) {
        request.tree = *std::move(shape);
        request.draft_tokens = depth;
        request.adaptive = false;
      }
    }
  }
  if (request.tree) request.schedule = v1::SCHEDULE_LOCKSTEP;
  return ParseOrder(speculation, limits, request);
}

}  // namespace outrider
