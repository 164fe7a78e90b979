#include "draft_service/draft_sampler.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "common/spec/siblings.h"
#include "common/spec/tree_shape.h"

namespace outrider {
namespace {

// Whether one more token would come after the deadline, if it took as long as the last. An answer that leaves
// in time is used whatever its values are; one that is late for its length may not be.
bool IsLateForMore(const SequenceState& sequence) {
  if (sequence.deadline() == absl::InfiniteFuture()) return false;
  const absl::Time now = absl::Now();
  return now + (now - sequence.step_started_at()) > sequence.deadline();
}

// Whether the next token is the one that the proposal is to follow.
bool DrawsNext(const SequenceState& sequence) {
  return sequence.work_as<ProposeWork>().draw_next && !sequence.answer().next;
}

// A token that was taken and not drawn, as at temperature 0, counts as if it had this share of what its
// siblings before it left.
constexpr double kTakenShare = 0.5;

// How likely each node is under q, given that its parent is.
std::vector<double> Likelihoods(std::span<const ProposalNode> proposal) {
  std::vector<double> likelihoods;
  std::vector<double> left(proposal.size() + 1, 1.0);  // by parent: what its children so far have left of q
  for (const ProposalNode& node : proposal) {
    const bool drawn =
        node.q.form == Distribution::Form::kSparse || node.q.form == Distribution::Form::kDense;
    const double share = drawn ? std::min(node.q(node.token), 1.0) : kTakenShare;
    double& rest = left[static_cast<size_t>(node.parent + 1)];
    likelihoods.push_back(share * rest);
    rest *= 1 - share;
  }
  return likelihoods;
}

// How many children each of the last `parents` nodes gets, or at level 0 the last committed token.
std::vector<int> ChildrenOf(const ProposeWork& work, int level, const Proposal& proposal, int parents) {
  std::vector<double> path = Likelihoods(proposal);
  for (size_t i = 0; i < path.size(); ++i) {
    if (proposal[i].parent >= 0) path[i] *= path[static_cast<size_t>(proposal[i].parent)];
  }
  if (level == 0) return ChildrenOfLevel(*work.tree, 0, work.draft_tokens, std::array{1.0});
  return ChildrenOfLevel(*work.tree, level, work.draft_tokens,
                         std::span(path).last(static_cast<size_t>(parents)));
}

// Adds the children of a node (-1: of the last committed token) to the proposal.
absl::Status DrawChildren(SequenceState& sequence, int parent, int count, std::span<float> logits) {
  const SequenceParams& params = sequence.params();
  Proposal& proposal = sequence.answer().proposal;
  const std::vector<TokenId> path = parent < 0 ? std::vector<TokenId>() : sequence.PathTo(parent);
  const std::span<const TokenId> context = parent < 0 ? sequence.tokens() : path;
  const absl::StatusOr<WeightRow> row = sequence.controls().Apply(context, logits);
  if (!row.ok()) return row.status();
  const SiblingDraw draw{
      .rule = params.rule,
      .top_n = params.draft_top_n,
      .count = count,
      .independent = std::holds_alternative<Chains>(*sequence.work_as<ProposeWork>().tree)};
  PhiloxNoise noise(params.key, static_cast<uint64_t>(sequence.committed()));
  for (ProposalNode& child :
       ProposeSiblings(draw, *row, params.key, context.size(), proposal.size(), noise)) {
    child.parent = parent;
    proposal.push_back(std::move(child));
  }
  return absl::OkStatus();
}

}  // namespace

void DraftSampler::Begin(SequenceState& sequence) {
  sequence.set_logit_rows(std::holds_alternative<ProposeWork>(sequence.work()) ? 1 : 0);
}

absl::StatusOr<bool> DraftSampler::Sample(SequenceState& sequence, const LogitsView& rows) {
  if (sequence.work_as<ProposeWork>().tree) return SampleLevel(sequence, rows);
  const std::span<const TokenId> context = sequence.tokens();
  absl::StatusOr<WeightRow> row =
      sequence.controls().Apply(context, {rows.row(0).data(), rows.row(0).size()});
  Answer& answer = sequence.answer();
  if (!row.ok()) {
    // What was drafted before is not to be lost for what it is.
    if (answer.next || !answer.proposal.empty()) return true;
    return row.status();
  }

  const ProposeWork& work = sequence.work_as<ProposeWork>();
  const SequenceParams& params = sequence.params();
  PhiloxNoise noise(params.key, static_cast<uint64_t>(sequence.committed()));
  ProposalNode node = Propose(params.rule, *row, params.draft_top_n, context.size(), noise);
  if (DrawsNext(sequence)) {
    sequence.CommitNext(std::move(node));
    return work.draft_tokens == 0 || IsLateForMore(sequence);
  }
  const TokenId token = node.token;
  Proposal& proposal = answer.proposal;
  AppendToChain(token, std::move(node.q), proposal);
  if (work.stop) proposal.back().confidence = Confidence(*row);
  if (work.alternatives > 0) {
    proposal.back().alternatives =
        Alternatives(params.rule, *row, params.key, context.size(), token, work.alternatives);
  }
  if (static_cast<int>(proposal.size()) == work.draft_tokens) return true;
  if (work.stop && EndsDraft(*work.stop, proposal)) return true;
  if (IsLateForMore(sequence)) return true;
  sequence.Append(token);
  return false;
}

// Draws all children of the last level's nodes, of which `rows` has the logits. How many each gets, and what
// is drawn, depends on the levels before it alone.
absl::StatusOr<bool> DraftSampler::SampleLevel(SequenceState& sequence, const LogitsView& rows) {
  const ProposeWork& work = sequence.work_as<ProposeWork>();
  Proposal& proposal = sequence.answer().proposal;
  const int level = Depth(proposal);
  const int before = static_cast<int>(proposal.size());
  const std::vector<int> children = ChildrenOf(work, level, proposal, rows.rows);
  for (int r = 0; r < rows.rows; ++r) {
    const int count = children[static_cast<size_t>(r)];
    if (count == 0) continue;
    const int parent = before - rows.rows + r;
    absl::Status status = DrawChildren(sequence, parent, count, {rows.row(r).data(), rows.row(r).size()});
    // What was drafted before is not to be lost for what it is: the node stays a leaf.
    if (!status.ok() && level == 0) return status;
  }
  const int drawn = static_cast<int>(proposal.size()) - before;
  if (drawn == 0 || level + 1 == work.draft_tokens || IsLateForMore(sequence)) return true;
  const std::vector<int> next = ChildrenOf(work, level + 1, proposal, drawn);
  if (std::all_of(next.begin(), next.end(), [](int count) { return count == 0; })) return true;
  for (auto node = proposal.end() - drawn; node != proposal.end(); ++node) {
    sequence.AppendNode(node->token, node->parent);
  }
  sequence.set_logit_rows(drawn);
  return false;
}

// A device drafts all tokens in one step, so neither a deadline nor a DraftStop ends it halfway, and its
// proposals have no confidences: who asked sees by that that it has to choose K itself. Nor have they
// alternatives. The token that a proposal is to follow is drawn on the host, since it leaves first.
std::optional<DeviceTask> DraftSampler::MakeDeviceTask(const SequenceState& sequence) const {
  if (DrawsNext(sequence) || sequence.work_as<ProposeWork>().tree) return std::nullopt;
  return DeviceTask{.params = &sequence.params(),
                    .round_start = static_cast<uint64_t>(sequence.committed()),
                    .work = ProposeTask{.draft_tokens = sequence.work_as<ProposeWork>().draft_tokens},
                    .status = absl::OkStatus()};
}

void DraftSampler::TakeDeviceResult(SequenceState& sequence, DeviceTask& task) {
  Proposal& proposal = sequence.answer().proposal;
  proposal = std::move(std::get<ProposeTask>(task.work).proposal);
  for (size_t i = 0; i + 1 < proposal.size(); ++i) sequence.Append(proposal[i].token);
}

std::optional<absl::Status> DraftSampler::OnDeadline(SequenceState& sequence) {
  sequence.DropPending();
  return absl::OkStatus();
}

}  // namespace outrider
