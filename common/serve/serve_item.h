// Serves one item of a coordinator's stream, the part that draft and target have in common: converts between
// the protocol's messages and the engine's work items, and answers.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "common/engine/sequence_params.h"
#include "common/engine/worker.h"
#include "common/obs/log.h"
#include "common/rpc/convert.h"
#include "common/rpc/outbox.h"
#include "common/spec/status.h"
#include "google/rpc/status.pb.h"
#include "outrider/v1/sequence.pb.h"

namespace outrider {

// Parses 16 bytes. INVALID_ARGUMENT, reason SEQUENCE_ID_INVALID, for another length.
absl::StatusOr<SequenceId> ParseSequenceId(const std::string& bytes);
std::string SerializeSequenceId(const SequenceId& id);

// INVALID_ARGUMENT with a reason.
absl::Status InvalidItem(absl::string_view reason, absl::string_view message);

// INVALID_ARGUMENT, naming `field`, if `top` is more alternatives than are allowed.
absl::Status CheckTopLogprobs(absl::string_view field, uint32_t top);

// Parses what all items have in common: everything but `work` and `answer`. `default_top_n` replaces a
// draft_top_n of 0. INVALID_ARGUMENT if the sequence id is invalid; any other problem is put into `invalid`
// of the item, so that it can be answered.
absl::StatusOr<WorkItem> ParseUpdate(const v1::SequenceUpdate& update, int vocab_size, int default_top_n);

// When an item with this budget is to be answered; never, if it is 0 or absent.
absl::Time DeadlineOf(const google::protobuf::Duration& budget);

// The error of an item. One that passes by itself (RESOURCE_EXHAUSTED, UNAVAILABLE) says when to try again.
google::rpc::Status ItemError(const absl::Status& status);

v1::PositionLogprobs ToProto(const PositionLogProbabilities& position);
v1::ItemTiming ToProto(const WorkTiming& timing);

// Logs, at level debug, an update that carries the request's context. That is the first one of a sequence,
// and the first one after the server lost it.
inline void LogSequence(const v1::SequenceUpdate& update) {
  if (!update.has_context() || !LogEnabled(LogLevel::kDebug)) return;
  LogDebug("sequence", {{"request_id", update.context().request_id()},
                        {"traceparent", update.context().traceparent()},
                        {"sequence", absl::BytesToHexString(update.sequence_id())},
                        {"base", update.base()},
                        {"tokens", update.tokens_size()}});
}

// Carries out a release or cancel item (of DraftItem or TargetItem). Returns whether it was one. An invalid
// id is ignored: nobody waits for an answer.
template <class Item>
bool HandleControlItem(const Item& item, Worker& worker) {
  if (item.has_release()) {
    if (auto id = ParseSequenceId(item.release().sequence_id()); id.ok()) worker.Release(*id);
    return true;
  }
  if (item.has_cancel()) {
    if (auto id = ParseSequenceId(item.cancel().sequence_id()); id.ok()) {
      worker.Cancel(*id, item.cancel().round());
    }
    return true;
  }
  return false;
}

// Submits an item's work to the worker and posts the answer. `update` is the item's; null if the item is
// empty. `parse_work(WorkItem&)` fills in WorkItem::work; its error is the answer. `fill_result(answer,
// result)` adds what only one of the services answers with; the answer may be an error.
template <class Response, class ParseWork, class FillResult>
void SubmitItem(const v1::SequenceUpdate* update, int vocab_size, int default_top_n, ParseWork parse_work,
                FillResult fill_result, const std::shared_ptr<Outbox<Response>>& results, Worker& worker) {
  const std::string id = update == nullptr ? "" : update->sequence_id();
  const uint64_t round = update == nullptr ? 0 : update->round();
  auto answer = [results, id, round, fill_result](const Answer& a) {
    typename Outbox<Response>::Item result;
    result.set_sequence_id(id);
    result.set_round(round);
    result.set_cached(static_cast<uint32_t>(a.num_computed));
    *result.mutable_timing() = ToProto(a.timing);
    if (!a.status.ok()) *result.mutable_status() = ItemError(a.status);
    fill_result(a, &result);
    results->Post(std::move(result));
  };
  const auto refuse = [&](absl::Status status) {
    Answer refusal;
    refusal.status = std::move(status);
    answer(refusal);
  };
  if (update == nullptr) {
    return refuse(InvalidItem("ITEM_EMPTY", "the item is empty"));
  }
  LogSequence(*update);
  absl::StatusOr<WorkItem> work = ParseUpdate(*update, vocab_size, default_top_n);
  if (!work.ok()) return refuse(work.status());
  work->invalid.Update(parse_work(*work));
  work->answer = std::move(answer);
  worker.Submit(*std::move(work));
}

}  // namespace outrider
