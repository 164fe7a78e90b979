#include "coordinator/api/generate_call.h"

#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/post.hpp>
#include <utility>

#include "absl/strings/escaping.h"
#include "common/obs/log.h"
#include "common/rpc/error.h"
#include "coordinator/rounds/speculation_stats.h"

namespace outrider {

GenerateCall::Sample::Sample(GenerateCall* call, uint32_t index, Request request, const Fork& fork)
    : call(call),
      index(index),
      drafter(MakeDrafter(request.drafter, call->parts_.drafters,
                          static_cast<int>(call->parts_.target->info()->vocab_size()), fork)),
      target(call->parts_.target, call->parts_.metrics, fork),
      generation(std::move(request), call->parts_.tokenizer, call->received_),
      loop(
          &generation, drafter.get(), &target, call->parts_.policy, call->parts_.observer,
          [this](v1::GenerateResponse chunk) { return Send(std::move(chunk)); }, call->deadline_),
      room(call->parts_.executor) {}

asio::awaitable<absl::Status> GenerateCall::Sample::Send(v1::GenerateResponse chunk) {
  if (call->cancelled_) co_return absl::CancelledError("cancelled");
  chunk.set_sample(index);
  const size_t unsent = call->writer_.Send(std::move(chunk));
  if (unsent >= ChunkWriter::kMaxUnsent) co_await room.Wait(call->deadline_);
  co_return call->cancelled_ ? absl::CancelledError("cancelled") : absl::OkStatus();
}

void GenerateCall::Sample::StopServers() {
  if (std::exchange(stopped, true)) return;
  drafter->Stop(generation);
  target.Stop(generation);
}

GenerateCall::GenerateCall(const ServiceParts* parts, const v1::GenerateRequest* request,
                           v1::RequestContext context, Clock::time_point deadline)
    : parts_(*parts),
      proto_(request),
      context_(std::move(context)),
      deadline_(deadline),
      received_(Clock::now()),
      finished_(parts->executor) {}

void GenerateCall::Start() {
  auto self = shared_from_this();
  const auto post = [self](void (GenerateCall::*method)()) {
    return [self, method] { asio::post(self->parts_.executor, [self, method] { (self.get()->*method)(); }); };
  };
  writer_.SetHandlers({post(&GenerateCall::OnRoom), post(&GenerateCall::OnCancel), [self]() mutable {
                         // The writer must outlive this call of its own, and the last reference may be here.
                         const auto& executor = self->parts_.executor;
                         asio::post(executor, [self = std::move(self)] { self->writer_.SetHandlers({}); });
                       }});
  asio::co_spawn(
      parts_.executor, [self] { return self->Run(); }, asio::detached);
}

void GenerateCall::OnRoom() {
  for (const auto& sample : samples_) sample->room.Notify();
}

void GenerateCall::Interrupt(absl::Status reason) {
  if (cancelled_) return;
  cancelled_ = true;
  interruption_ = std::move(reason);
  OnRoom();
  for (const auto& sample : samples_) sample->StopServers();
}

asio::awaitable<void> GenerateCall::Run() {
  parts_.metrics->OnRequestStart();
  absl::StatusOr<Request> request = Admit();
  absl::Status status = request.status();
  if (request.ok()) {
    status = co_await RunSamples(*std::move(request));
    ticket_ = nullptr;
    LogEnd(status);
  } else {
    LogInfo("request refused", {{"request_id", context_.request_id()},
                                {"code", absl::StatusCodeToString(status.code())},
                                {"error", std::string(status.message())}});
  }
  parts_.metrics->OnRequestEnd(absl::StatusCodeToString(status.code()));
  writer_.End(ToGrpc(status));
}

absl::StatusOr<Request> GenerateCall::Admit() {
  if (absl::Status status = parts_.admission->CheckOpen(); !status.ok()) return status;
  if (parts_.target->info() == nullptr) {
    return MakeError(absl::StatusCode::kUnavailable, "TARGET_UNAVAILABLE",
                     "the target has not been reachable yet");
  }
  absl::StatusOr<Request> request =
      ParseRequest(*proto_, parts_.defaults, *parts_.tokenizer, *parts_.target->info());
  if (!request.ok()) return request.status();
  request->context = context_;
  auto ticket = parts_.admission->Enter(request->samples,
                                        [this](absl::Status reason) { Interrupt(std::move(reason)); });
  if (!ticket.ok()) return ticket.status();
  ticket_ = *std::move(ticket);
  return request;
}

asio::awaitable<absl::Status> GenerateCall::RunSamples(Request request) {
  wanted_samples_ = static_cast<uint32_t>(request.samples);
  samples_.push_back(std::make_unique<Sample>(this, 0, std::move(request), Fork()));
  co_await RunSample(*samples_[0]);
  while (unfinished_ > 0) co_await finished_.Wait();
  // The first has stayed on the servers for as long as another might have been copied from it.
  samples_[0]->StopServers();
  co_return cancelled_ ? interruption_ : absl::OkStatus();
}

asio::awaitable<void> GenerateCall::RunSample(Sample& sample) {
  ++unfinished_;
  parts_.policy->Begin();
  absl::Status status = co_await sample.loop.ComputePrompt();
  if (status.ok() && sample.index == 0) StartSiblings();
  if (status.ok()) status = co_await sample.loop.Decode();
  parts_.policy->End();
  if (status.ok()) {
    parts_.metrics->OnFinish(sample.generation.finish(), Seconds(Clock::now() - received_));
  } else {
    Interrupt(status);
  }
  if (sample.index > 0) sample.StopServers();
  --unfinished_;
  finished_.Notify();
}

void GenerateCall::StartSiblings() {
  const Generation& first = samples_[0]->generation;
  while (samples_.size() < wanted_samples_) {
    const auto index = static_cast<uint32_t>(samples_.size());
    Request request = first.request();
    request.prompt_logprobs = -1;
    request.params.set_sample_index(request.params.sample_index() + index);
    // The token that a sequence ends with is always fed again.
    const Fork fork{first.sequence_id(), request.prompt.size() - 1};
    samples_.push_back(std::make_unique<Sample>(this, index, std::move(request), fork));
    asio::co_spawn(
        parts_.executor,
        [self = shared_from_this(), sample = samples_.back().get()] { return self->RunSample(*sample); },
        asio::detached);
  }
}

void GenerateCall::LogEnd(const absl::Status& status) const {
  int64_t emitted = 0;
  v1::SpeculationStats stats;
  for (const auto& sample : samples_) {
    emitted += sample->generation.emitted();
    AddCounts(sample->generation.stats(), &stats);
  }
  LogInfo("request",
          {{"request_id", context_.request_id()},
           {"traceparent", context_.traceparent()},
           {"sequence", absl::BytesToHexString(samples_[0]->generation.sequence_id())},
           {"code", absl::StatusCodeToString(status.code())},
           {"error", std::string(status.message())},
           {"prompt_tokens", static_cast<int64_t>(samples_[0]->generation.request().prompt.size())},
           {"samples", static_cast<int64_t>(samples_.size())},
           {"completion_tokens", emitted},
           {"rounds", static_cast<int64_t>(stats.rounds())},
           {"drafted", static_cast<int64_t>(stats.drafted())},
           {"accepted", static_cast<int64_t>(stats.accepted())},
           {"acceptance_rate", AcceptanceRate(stats)},
           {"seconds", Seconds(Clock::now() - received_)}});
}

}  // namespace outrider
