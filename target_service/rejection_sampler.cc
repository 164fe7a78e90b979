#include "target_service/rejection_sampler.h"

#include <memory>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "common/spec/distribution.h"
#include "common/spec/status.h"
#include "common/spec/verify.h"
#include "common/spec/weights.h"

namespace outrider {
namespace {

// Log-probabilities of the model's own distribution. `logits` must be finite.
PositionLogProbabilities Describe(std::span<const float> logits, TokenId token, int top) {
  return {{token, logits[token] - LogSumExp(logits)}, TopLogProbabilities(logits, top)};
}

// Applies the controls to the rows of a round, and keeps the rows where log-probabilities were requested.
class Rows {
 public:
  Rows(SequenceState& sequence, const LogitsView& logits) : sequence_(sequence), logits_(logits) {}

  absl::StatusOr<WeightRow> Shape(int i) {
    const SequenceParams& params = sequence_.params();
    const std::span<float> logits(logits_.row(i).data(), logits_.row(i).size());
    if (params.logprobs >= 0 && params.logprobs_before_controls) {
      before_controls_.emplace_back(logits.begin(), logits.end());
    }
    absl::StatusOr<WeightRow> row = sequence_.controls().Apply(Context(i), logits);
    if (params.logprobs >= 0 && row.ok()) rows_.push_back(*row);
    return row;
  }

  // The log-probabilities of the i-th emitted token.
  PositionLogProbabilities LogProbabilities(size_t i, TokenId token, const Verdict& verdict) const {
    const SequenceParams& params = sequence_.params();
    if (params.logprobs_before_controls) return Describe(before_controls_[i], token, params.logprobs);
    return {{token, verdict.log_probabilities[i]}, TopLogProbabilities(rows_[i], params.logprobs)};
  }

 private:
  // The tokens before row i: the committed ones, and the path to node i - 1.
  std::span<const TokenId> Context(int i) {
    const size_t n = static_cast<size_t>(sequence_.committed());
    if (sequence_.parents().empty()) return sequence_.tokens().first(n + static_cast<size_t>(i));
    if (i == 0) return sequence_.tokens().first(n);
    path_ = sequence_.PathTo(i - 1);
    return path_;
  }

  SequenceState& sequence_;
  const LogitsView& logits_;
  std::vector<TokenId> path_;
  std::vector<WeightRow> rows_;
  std::vector<std::vector<float>> before_controls_;
};

absl::Status CheckTree(const SequenceParams& params, bool takes_rounded_trees) {
  const auto refuse = [](absl::string_view what) {
    return InvalidFor("TREE_UNSUPPORTED", "draft: a tree ", what);
  };
  if (params.rule == Rule::kBlock) return refuse("under the block rule; allowed: a chain");
  if (params.lenience < 1) return refuse("with lenience below 1; allowed: a chain");
  const bool exact_bits = params.rule == Rule::kCoupled || params.sampling.temperature == 0;
  if (exact_bits && !takes_rounded_trees) {
    return refuse(
        "for greedy decoding or the coupled rule, on an engine that rounds it otherwise; allowed: a chain");
  }
  return absl::OkStatus();
}

}  // namespace

void RejectionSampler::Begin(SequenceState& sequence) {
  const auto* verify = std::get_if<VerifyWork>(&sequence.work());
  if (verify == nullptr) return sequence.set_logit_rows(0);
  if (IsChain(verify->proposal)) {
    for (const ProposalNode& node : verify->proposal) sequence.Append(node.token);
  } else {
    for (const ProposalNode& node : verify->proposal) sequence.AppendNode(node.token, node.parent);
  }
  sequence.set_logit_rows(static_cast<int>(verify->proposal.size()) + 1);
}

void RejectionSampler::Score(SequenceState& sequence, int first, const LogitsView& rows) {
  for (int i = 0; i < rows.rows; ++i) {
    const int next = first + i + 1;
    if (next >= sequence.committed()) return;
    sequence.answer().prompt_logprobs.push_back(Describe({rows.row(i).data(), rows.row(i).size()},
                                                         sequence.tokens()[static_cast<size_t>(next)],
                                                         sequence.prompt_logprobs()));
  }
}

absl::StatusOr<bool> RejectionSampler::Sample(SequenceState& sequence, const LogitsView& logits) {
  const SequenceParams& params = sequence.params();
  if (const int wanted = sequence.work_as<VerifyWork>().candidates; wanted > 0) {
    sequence.answer().candidates = OUTRIDER_TRY(Candidates(logits, wanted));
    return true;
  }
  const Proposal& proposal = sequence.work_as<VerifyWork>().proposal;
  if (!IsChain(proposal)) OUTRIDER_TRY(CheckTree(params, takes_rounded_trees_));
  Rows rows(sequence, logits);
  Verdict verdict = OUTRIDER_TRY(Verify(
      OptionsOf(params), proposal, [&](int i) { return rows.Shape(i); },
      static_cast<uint64_t>(sequence.committed()), params.key));
  if (params.logprobs >= 0) {
    std::vector<TokenId> emitted;
    for (int node : verdict.path) emitted.push_back(proposal[static_cast<size_t>(node)].token);
    emitted.push_back(verdict.token);
    for (size_t i = 0; i < emitted.size(); ++i) {
      sequence.answer().logprobs.push_back(rows.LogProbabilities(i, emitted[i], verdict));
    }
  }
  sequence.answer().verdict = std::make_unique<Verdict>(std::move(verdict));
  return true;
}

std::optional<DeviceTask> RejectionSampler::MakeDeviceTask(const SequenceState& sequence) const {
  const VerifyWork& work = sequence.work_as<VerifyWork>();
  const bool for_host = work.prompt_logprobs >= 0 || work.candidates > 0 || work.propose.has_value();
  if (for_host || !IsChain(work.proposal)) return std::nullopt;
  return DeviceTask{.params = &sequence.params(),
                    .round_start = static_cast<uint64_t>(sequence.committed()),
                    .work = VerifyTask{.draft = work.proposal, .verdict = {}},
                    .status = absl::OkStatus()};
}

void RejectionSampler::TakeDeviceResult(SequenceState& sequence, DeviceTask& task) {
  sequence.answer().verdict = std::make_unique<Verdict>(std::move(std::get<VerifyTask>(task.work).verdict));
}

std::optional<absl::Status> RejectionSampler::OnDeadline(SequenceState& sequence) {
  if (sequence.started()) return std::nullopt;
  return MakeError(absl::StatusCode::kDeadlineExceeded, "BUDGET_EXCEEDED",
                   "budget_exceeded: not begun within the item's budget");
}

absl::StatusOr<std::vector<CandidateRow>> Candidates(const LogitsView& logits, int n) {
  std::vector<CandidateRow> rows;
  for (int i = 0; i < logits.rows; ++i) {
    const std::span<const float> row(logits.row(i).data(), logits.row(i).size());
    if (!FindMax(row).finite) return NotFiniteError();
    rows.push_back(TopLogProbabilities(row, n));
  }
  return rows;
}

}  // namespace outrider
