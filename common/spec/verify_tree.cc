#include "common/spec/verify.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/container/inlined_vector.h"
#include "common/spec/residual.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

using Children = absl::InlinedVector<int, 8>;

absl::Status Check(const VerifyOptions& options, std::span<const ProposalNode> tree) {
  if (options.rule == Rule::kBlock) {
    return FieldError("rule", "the token rule or the coupled rule", "the block rule judges no trees");
  }
  if (options.lenience < 1) return FieldError("lenience", "1", "trees are judged without lenience");
  for (size_t i = 0; i < tree.size(); ++i) {
    const int parent = tree[i].parent;
    if (parent < -1 || parent >= static_cast<int>(i)) {
      return InvalidFor("DRAFT_PARENT_OUT_OF_RANGE", "parent of node ", i, ": ", parent, " is not in [-1, ",
                        i, ")");
    }
    const bool has_q = tree[i].q.form != Distribution::Form::kAbsent;
    if (!has_q && options.rule != Rule::kCoupled) return QMissingError();
  }
  return absl::OkStatus();
}

// The Fisher-Yates shuffle. Asks for a number only where there is a choice.
void Shuffle(uint64_t position, Noise& noise, Children& children) {
  for (size_t i = 0; i + 1 < children.size(); ++i) {
    const size_t left = children.size() - i;
    const int pick = noise.Decide(Purpose::kOrder, position, i, [left](double u) {
      return static_cast<int>(u * static_cast<double>(left));
    });
    std::swap(children[i], children[i + pick]);
  }
}

// One step of the walk, at a node whose row and children are known: decides which token follows, and which
// child has it, if any.
class Step {
 public:
  Step(std::span<const ProposalNode> tree, const WeightRow& row, uint64_t position, Noise& noise,
       Verdict& verdict)
      : tree_(tree), row_(row), position_(position), noise_(noise), verdict_(verdict) {}

  // Returns the child that is accepted, or -1. Either way sets `token` to the emitted token.
  int Race(const Children& children, TokenId& token) {
    token = RaceForToken(row_, row_.point_mass, position_, noise_);
    for (int child : children) {
      ++verdict_.judged;
      if (tree_[child].token == token) return child;
    }
    return -1;
  }

  int TryInTurn(const Children& children, TokenId& token) {
    for (int child : children) {
      const Distribution& q = tree_[child].q;
      const double b = std::min(rest_ ? rest_->Overlap(q) : Overlap(row_, q), 1.0);
      ++verdict_.judged;
      verdict_.expected_accepted += b;
      verdict_.expected_variance += b * (1 - b);
      if (Stands(child)) {
        token = tree_[child].token;
        return child;
      }
      if (!rest_) rest_.emplace(row_);
      rest_->Subtract(q);
    }
    verdict_.empty_residual = rest_ && rest_->empty();
    token = DrawToken(row_.point_mass, rest_ ? Purpose::kResidual : Purpose::kBonus, position_, noise_,
                      [&](double u) { return rest_ ? rest_->Sample(u) : Sample(row_, u); });
    return -1;
  }

 private:
  bool Stands(int child) {
    const ProposalNode& node = tree_[child];
    if (row_.point_mass >= 0) return node.token == row_.point_mass;
    return noise_.Test(Purpose::kAccept, position_, static_cast<uint64_t>(child), [&](double u) {
      return rest_ ? Accepts(u, node.token, *rest_, node.q) : Accepts(u, node.token, row_, node.q);
    });
  }

  std::span<const ProposalNode> tree_;
  const WeightRow& row_;
  const uint64_t position_;
  Noise& noise_;
  Verdict& verdict_;
  std::optional<Residual> rest_;  // set once a child is rejected; until then the residual is row_
};

}  // namespace

absl::StatusOr<Verdict> VerifyTree(const VerifyOptions& options, std::span<const ProposalNode> tree,
                                   RowSource rows, uint64_t round_start, Noise& noise) {
  const bool coupled = options.rule == Rule::kCoupled;
  OUTRIDER_TRY(Check(options, tree));
  Verdict verdict;
  int node = -1;
  for (uint64_t position = round_start;; ++position) {
    const WeightRow row = OUTRIDER_TRY(rows(node + 1));
    Children children;
    for (size_t i = 0; i < tree.size(); ++i) {
      if (tree[i].parent == node) children.push_back(static_cast<int>(i));
    }
    // For a point mass the order makes no difference.
    if (options.sibling_order == SiblingOrder::kRandom && row.point_mass < 0)
      Shuffle(position, noise, children);
    Step step(tree, row, position, noise, verdict);
    TokenId token = 0;
    node = coupled ? step.Race(children, token) : step.TryInTurn(children, token);
    const double log_probability = std::log(row(token));
    verdict.log_probabilities.push_back(log_probability);
    verdict.surprisal -= log_probability;
    verdict.entropy += Entropy(row);
    if (node < 0) {
      verdict.token = token;
      verdict.kind = children.empty() ? Verdict::Kind::kBonus : Verdict::Kind::kCorrected;
      return verdict;
    }
    verdict.path.push_back(node);
  }
}

}  // namespace outrider
