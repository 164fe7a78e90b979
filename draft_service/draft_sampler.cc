#include "draft_service/draft_sampler.h"

#include <algorithm>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "common/spec/draft_stop.h"
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
bool LooksAtConfidence(const SequenceState& sequence) {
  return sequence.controls().greedy() &&
         std::holds_alternative<NodeBudget>(*sequence.work_as<ProposeWork>().tree);
}

// Shapes the row after a node (-1: after the last committed token).
absl::StatusOr<WeightRow> ShapeRow(SequenceState& sequence, int node, absl::Span<float> logits) {
  const std::vector<TokenId> path = node < 0 ? std::vector<TokenId>() : sequence.PathTo(node);
  const std::span<const TokenId> context = node < 0 ? sequence.tokens() : path;
  return sequence.controls().Apply(context, {logits.data(), logits.size()});
}

// Adds the children of a node (-1: of the last committed token), which are at `position`, to the proposal.
// `confidence`: 0 if it is not known.
void DrawChildren(SequenceState& sequence, size_t position, int parent, int count, const WeightRow& row,
                  float confidence) {
  const SequenceParams& params = sequence.params();
  Proposal& proposal = sequence.answer().proposal;
  const SiblingDraw draw{
      .rule = params.rule,
      .top_n = params.draft_top_n,
      .count = count,
      .independent = std::holds_alternative<Chains>(*sequence.work_as<ProposeWork>().tree)};
  PhiloxNoise noise(params.key, static_cast<uint64_t>(sequence.committed()));
  for (ProposalNode& child : ProposeSiblings(draw, row, params.key, position, proposal.size(), noise)) {
    child.parent = parent;
    child.confidence = confidence;
    proposal.push_back(std::move(child));
  }
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
// is drawn, depends on the levels before it and on these rows alone.
absl::StatusOr<bool> DraftSampler::SampleLevel(SequenceState& sequence, const LogitsView& rows) {
  const ProposeWork& work = sequence.work_as<ProposeWork>();
  Proposal& proposal = sequence.answer().proposal;
  const int level = Depth(proposal);
  const int before = static_cast<int>(proposal.size());
  const int first_parent = before - rows.rows;  // -1 at level 0
  std::vector<absl::StatusOr<WeightRow>> shaped;
  for (int r = 0; r < rows.rows; ++r) shaped.push_back(ShapeRow(sequence, first_parent + r, rows.row(r)));
  if (level == 0 && !shaped[0].ok()) return shaped[0].status();

  std::vector<float> confidences(shaped.size(), 0);
  std::vector<double> first_stands(shaped.size(), kFirstChildStands);
  for (size_t r = 0; r < shaped.size() && LooksAtConfidence(sequence); ++r) {
    if (!shaped[r].ok()) continue;
    confidences[r] = Confidence(*shaped[r]);
    first_stands[r] = FirstStands(confidences[r]);
  }
  const std::vector<int> children = ChildrenOfLevel(*work.tree, level, work.draft_tokens,
                                                    StandsOfLevel(level, proposal, rows.rows), first_stands);
  const size_t position = level == 0 ? sequence.tokens().size() : sequence.PathTo(first_parent).size();
  for (size_t r = 0; r < shaped.size(); ++r) {
    // What was drafted before is not to be lost for what it is: the node stays a leaf.
    if (!shaped[r].ok()) continue;
    DrawChildren(sequence, position, first_parent + static_cast<int>(r), children[r], *shaped[r],
                 confidences[r]);
  }

  const int drawn = static_cast<int>(proposal.size()) - before;
  if (drawn == 0 || level + 1 == work.draft_tokens || IsLateForMore(sequence)) return true;
  const std::vector<int> next =
      ChildrenOfLevel(*work.tree, level + 1, work.draft_tokens, StandsOfLevel(level + 1, proposal, drawn));
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
