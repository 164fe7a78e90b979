#include "draft_service/draft_service.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rpc/convert.h"
#include "common/rpc/error.h"
#include "common/serve/convert.h"
#include "common/serve/serve_item.h"

namespace outrider {
namespace {

using Results = Outbox<v1::ProposeResponse>;

v1::ProposeResult ToResult(const std::string& sequence_id, uint64_t round, const Answer& answer) {
  v1::ProposeResult result;
  result.set_sequence_id(sequence_id);
  result.set_round(round);
  result.set_cached(static_cast<uint32_t>(answer.num_computed));
  *result.mutable_timing() = ToProto(answer.timing);
  if (answer.status.ok()) {
    SerializeProposal(answer.proposal, result.mutable_nodes());
    for (const ProposalNode& node : answer.proposal) {
      if (node.confidence > 0) result.add_confidence(node.confidence);
    }
  } else {
    *result.mutable_status() = ItemError(answer.status);
  }
  return result;
}

// More bins than anybody needs to tell confidences apart.
constexpr int kMaxBins = 256;

// Fills in work.work: K tokens to draft, or as many as fit the context.
absl::Status ParsePropose(const v1::ProposeItem& item, const v1::ServerInfo& info, WorkItem& work) {
  if (work.params != nullptr && work.params->draft_temperature) {
    auto params = std::make_shared<SequenceParams>(*work.params);
    params->sampling.temperature = *params->draft_temperature;
    work.params = std::move(params);
  }
  if (item.draft_tokens() > info.max_draft_tokens()) {
    return MakeError(
        absl::StatusCode::kInvalidArgument, "K_OUT_OF_RANGE",
        absl::StrCat("draft_tokens: ", item.draft_tokens(), "; allowed: 0 to ", info.max_draft_tokens()));
  }
  if (item.stop().acceptance_size() > kMaxBins) {
    return MakeError(absl::StatusCode::kInvalidArgument, "STOP_OUT_OF_RANGE",
                     absl::StrCat("stop.acceptance: ", item.stop().acceptance_size(),
                                  " entries; allowed: 0 to ", kMaxBins));
  }
  // The last drafted token is never computed, so the cache ends up with n + K - 1 tokens.
  const size_t n = work.committed();
  const size_t room = n < info.max_context() ? info.max_context() - n : 0;
  if (const size_t k = std::min<size_t>(item.draft_tokens(), room); k > 0) {
    ProposeWork propose{.draft_tokens = static_cast<int>(k)};
    if (item.has_stop()) {
      const auto& acceptance = item.stop().acceptance();
      propose.stop =
          DraftStop{.acceptance = {acceptance.begin(), acceptance.end()}, .least = item.stop().least()};
    }
    work.work = std::move(propose);
  }
  return absl::OkStatus();
}

}  // namespace

void DraftService::OnItem(v1::DraftItem&& item, const std::shared_ptr<Results>& results) {
  if (HandleControlItem(item, worker_)) return;
  SubmitItem(
      item.has_propose() ? &item.propose().sequence() : nullptr, static_cast<int>(info_.vocab_size()),
      default_top_n_, [&](WorkItem& work) { return ParsePropose(item.propose(), info_, work); }, ToResult,
      results, worker_);
}

}  // namespace outrider
