#include "common/spec/verify_tree.h"

#include <algorithm>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "common/spec/accepts.h"
#include "common/spec/judge_chain.h"
#include "common/spec/residual.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

using Children = absl::InlinedVector<int, 8>;

Children ChildrenOf(int node, std::span<const ProposalNode> tree) {
  Children children;
  for (size_t i = 0; i < tree.size(); ++i) {
    if (tree[i].parent == node) children.push_back(static_cast<int>(i));
  }
  return children;
}

// Fisher and Yates. A number is asked for each choice that is one.
void Shuffle(uint64_t position, Noise& noise, Children& children) {
  for (size_t i = 0; i + 1 < children.size(); ++i) {
    const size_t left = children.size() - i;
    const int pick = noise.Decide(Purpose::kOrder, position, i, [left](double u) {
      return static_cast<int>(u * static_cast<double>(left));
    });
    std::swap(children[i], children[i + pick]);
  }
}

absl::Status CheckTree(std::span<const ProposalNode> tree) {
  for (size_t i = 0; i < tree.size(); ++i) {
    if (tree[i].parent < -1 || tree[i].parent >= static_cast<int>(i)) {
      return OutOfRange(absl::StrCat("parent of node ", i), tree[i].parent, absl::StrCat("[-1, ", i, ")"));
    }
    if (tree[i].q.form == Distribution::Form::kAbsent) {
      return QMissingError();
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Verdict> VerifyTree(ChildOrder order, std::span<const ProposalNode> tree, TreeRowSource rows,
                                   uint64_t round_start, Noise& noise) {
  if (absl::Status status = CheckTree(tree); !status.ok()) return status;
  Verdict verdict;
  int node = -1;
  for (uint64_t position = round_start;; ++position) {
    const absl::StatusOr<WeightRow> row = rows(node);
    if (!row.ok()) return row.status();
    Children children = ChildrenOf(node, tree);
    if (children.empty()) {
      verdict.kind = tree.empty() ? Verdict::Kind::kPlain : Verdict::Kind::kBonus;
      verdict.token = DrawToken(row->point_mass, Purpose::kBonus, position, noise,
                                [&](double u) { return Sample(*row, u); });
      return verdict;
    }
    if (order == ChildOrder::kRandom) Shuffle(position, noise, children);
    Residual residual(*row);
    const auto stands = std::find_if(children.begin(), children.end(), [&](int child) {
      const ProposalNode& node = tree[child];
      const bool accepted = noise.Test(Purpose::kAccept, position, static_cast<uint64_t>(child),
                                       [&](double u) { return Accepts(u, node.token, residual, node.q); });
      if (!accepted) residual.Subtract(node.q);
      return accepted;
    });
    if (stands == children.end()) {
      verdict.kind = Verdict::Kind::kCorrected;
      verdict.empty_residual = residual.empty();
      verdict.token = DrawToken(row->point_mass, Purpose::kResidual, position, noise,
                                [&](double u) { return residual.Sample(u); });
      return verdict;
    }
    node = *stands;
    verdict.path.push_back(node);
  }
}

}  // namespace outrider
