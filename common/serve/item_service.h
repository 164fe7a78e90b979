// The gRPC service of a draft or target: passes the items on the coordinators' streams to the engine as work,
// and answers them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "common/engine/worker.h"
#include "common/obs/log.h"
#include "common/obs/tracer.h"
#include "common/rpc/batch_server.h"
#include "common/serve/grammar_gate.h"
#include "common/serve/model_service.h"
#include "common/serve/serve_item.h"
#include "common/spec/status.h"

namespace outrider {

// Carries out a release or cancel item (of DraftItem or TargetItem). Returns whether it was one. An invalid
// id is ignored: nobody waits for an answer.
template <class Item>
bool HandleControlItem(const Item& item, Worker& worker, GrammarGate& gate) {
  if (item.has_release()) {
    if (auto id = ParseSequenceId(item.release().sequence_id()); id.ok()) {
      gate.RunInOrder(*id, [&worker, id = *id] { worker.Release(id); });
    }
    return true;
  }
  if (item.has_cancel()) {
    if (auto id = ParseSequenceId(item.cancel().sequence_id()); id.ok()) {
      gate.RunInOrder(*id, [&worker, id = *id, round = item.cancel().round()] { worker.Cancel(id, round); });
    }
    return true;
  }
  return false;
}

// Starts the span of an item, which records nothing if the item's sender does not trace it.
inline Span StartItemSpan(Tracer* tracer, absl::string_view name, const v1::SequenceUpdate& update) {
  const std::string& parent = update.context().traceparent();
  return parent.empty() ? Span() : StartSpan(tracer, Span::Kind::kServer, name, parent);
}

// Ends the span of an item with the attributes and the status of its answer.
inline void EndSpan(const Answer& answer, Span& span) {
  span.Set({{"outrider.queue_us", absl::ToInt64Microseconds(answer.timing.queue)},
            {"outrider.compute_us", absl::ToInt64Microseconds(answer.timing.compute)},
            {"outrider.batch_sequences", answer.timing.batch_sequences},
            {"outrider.batch_rows", answer.timing.batch_rows},
            {"outrider.cached_tokens", answer.num_computed}});
  span.SetStatus(answer.status);
  span.End();
}

// Submits an item's work through `gate`, and posts the answer to `results`, which ends `span`. `update` is
// the item's; null if the item is empty. `parse_work(WorkItem&)` fills in WorkItem::work; its error is the
// answer. `fill_result(answer, result)` adds the fields of this service only; the answer may be an error.
template <class Response, class ParseWork, class FillResult>
void SubmitItem(const v1::SequenceUpdate* update, int vocab_size, int default_top_n, ParseWork parse_work,
                FillResult fill_result, const std::shared_ptr<Outbox<Response>>& results, GrammarGate& gate,
                Span span) {
  const std::string id = update == nullptr ? "" : update->sequence_id();
  const uint64_t round = update == nullptr ? 0 : update->round();
  const auto traced = span.records() ? std::make_shared<Span>(std::move(span)) : nullptr;
  auto answer = [results, id, round, fill_result, traced](const Answer& a) {
    if (traced != nullptr) EndSpan(a, *traced);
    typename Outbox<Response>::Item result;
    result.set_sequence_id(id);
    result.set_round(round);
    result.set_cached(static_cast<uint32_t>(a.num_computed));
    *result.mutable_timing() = ToProto(a.timing);
    if (!a.status.ok()) *result.mutable_status() = ItemError(a.status);
    fill_result(a, &result);
    results->Post(std::move(result));
  };
  if (update == nullptr) return answer(Refusal(InvalidFor("ITEM_EMPTY", "the item is empty"), 0));
  // Only the first update of a sequence, and the first after the server lost it, names the request.
  if (!update->context().request_id().empty() && LogEnabled(LogLevel::kDebug)) {
    LogDebug("sequence", {{"request_id", update->context().request_id()},
                          {"traceparent", update->context().traceparent()},
                          {"sequence", absl::BytesToHexString(id)},
                          {"base", update->base()},
                          {"tokens", update->tokens_size()}});
  }
  absl::StatusOr<WorkItem> work = ParseUpdate(*update, vocab_size, default_top_n);
  if (!work.ok()) return answer(Refusal(work.status(), 0));
  work->invalid.Update(parse_work(*work));
  work->answer = std::move(answer);
  const v1::SamplingParams& sampling = update->params().sampling();
  if (!sampling.has_grammar()) return gate.Submit(*std::move(work), /*grammar=*/nullptr);
  const absl::StatusOr<GrammarText> grammar = ParseGrammar(sampling.grammar());
  work->invalid.Update(grammar.status());
  gate.Submit(*std::move(work), grammar.ok() ? &*grammar : nullptr);
}

// `Raw` is the generated service, with a raw method; kRequest accepts that method's calls. Thread-safe.
template <class Raw, class Request, class Response, auto kRequest>
class ItemService final : public Raw, public StreamService {
 public:
  using Item = typename Outbox<Request>::Item;
  using Results = std::shared_ptr<Outbox<Response>>;

  // `worker` and `info` must outlive this. `on_item` takes the items that HandleControlItem does not.
  ItemService(Worker& worker, const v1::ServerInfo& info, std::unique_ptr<GrammarGate> gate,
              std::function<void(const Item& item, const Results& results, GrammarGate& gate)> on_item)
      : gate_(std::move(gate)),
        streams_(
            info,
            [this, &worker, on_item = std::move(on_item)](const Item& item, const Results& results) {
              if (!HandleControlItem(item, worker, *gate_)) on_item(item, results, *gate_);
            },
            [&worker] {
              return ServerLoad{worker.items(), worker.kv_used()};
            }) {}

  grpc::Service* service() override { return this; }
  void Serve(RpcServer& server) override {
    streams_.Serve(server, [this](auto* context, auto* stream, auto* queue, auto* tag) {
      (this->*kRequest)(context, stream, queue, queue, tag);
    });
  }
  void HoldAnswers() override { streams_.Hold(); }
  void ReleaseAnswers() override { streams_.Release(); }
  void RefuseStreams() override { streams_.Close(); }
  void EndStreams() override { streams_.EndAll(); }

 private:
  const std::unique_ptr<GrammarGate> gate_;
  BatchServer<Request, Response> streams_;
};

}  // namespace outrider
