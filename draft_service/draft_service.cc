#include "draft_service/draft_service.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rpc/convert.h"
#include "common/rpc/error.h"
#include "common/serve/control_items.h"
#include "common/serve/convert.h"
#include "common/serve/sequence_log.h"

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
  } else {
    *result.mutable_status() = ToProto(answer.status);
  }
  return result;
}

}  // namespace

grpc::ServerBidiReactor<v1::ProposeRequest, v1::ProposeResponse>* DraftService::Propose(
    grpc::CallbackServerContext* /*context*/) {
  return new Stream(
      info_,
      [this](v1::DraftItem&& item, const std::shared_ptr<Results>& results) {
        if (HandleControlItem(item, worker_)) return;
        if (!item.has_propose()) {
          Answer answer;
          answer.status = MakeError(absl::StatusCode::kInvalidArgument, "ITEM_EMPTY", "item without a kind");
          return results->Post(ToResult("", 0, answer));
        }
        const v1::ProposeItem& propose = item.propose();
        const std::string& id = propose.sequence().sequence_id();
        const uint64_t round = propose.sequence().round();
        LogSequence(propose.sequence());
        absl::StatusOr<WorkItem> work =
            ParseUpdate(propose.sequence(), static_cast<int>(info_.vocab_size()), default_top_n_);
        if (!work.ok()) {
          Answer answer;
          answer.status = work.status();
          return results->Post(ToResult(id, round, answer));
        }
        if (work->params != nullptr && work->params->draft_temperature) {
          auto params = std::make_shared<SequenceParams>(*work->params);
          params->sampling.temperature = *params->draft_temperature;
          work->params = std::move(params);
        }
        if (propose.draft_tokens() > info_.max_draft_tokens()) {
          work->invalid = MakeError(absl::StatusCode::kInvalidArgument, "K_OUT_OF_RANGE",
                                    absl::StrCat("draft_tokens: ", propose.draft_tokens(), "; allowed: 0 to ",
                                                 info_.max_draft_tokens()));
        }
        // The last drafted token is never fed, so the cache ends up with n + K - 1.
        const size_t n = work->committed();
        const size_t room = n < info_.max_context() ? info_.max_context() - n : 0;
        if (const size_t k = std::min<size_t>(propose.draft_tokens(), room); k > 0) {
          work->work = ProposeWork{.draft_tokens = static_cast<int>(k)};
        }
        work->answer = [results, id, round](const Answer& answer) {
          results->Post(ToResult(id, round, answer));
        };
        worker_.Submit(*std::move(work));
      },
      &streams_);
}

}  // namespace outrider
