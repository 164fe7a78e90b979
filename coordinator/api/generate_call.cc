#include "coordinator/api/generate_call.h"

#include <grpc/support/time.h>

#include <algorithm>
#include <chrono>
#include <exception>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/obs/log.h"
#include "common/rpc/convert.h"
#include "common/rpc/drafters.h"
#include "common/rpc/error.h"
#include "common/spec/status.h"
#include "coordinator/api/request_context.h"

namespace outrider {
namespace {

// A deadline beyond the range of a nanosecond clock counts as none.
Clock::time_point DeadlineOf(gpr_timespec deadline) {
  const gpr_timespec left =
      gpr_time_sub(gpr_convert_clock_type(deadline, GPR_CLOCK_MONOTONIC), gpr_now(GPR_CLOCK_MONOTONIC));
  constexpr int64_t kFar = int64_t{100} * 365 * 24 * 3600;
  if (left.tv_sec > kFar) return Clock::time_point::max();
  return Clock::now() + std::chrono::seconds(left.tv_sec) + std::chrono::nanoseconds(left.tv_nsec);
}

}  // namespace

absl::Status Failure(const std::exception_ptr& exception) {
  LogException("exception", exception);
  return absl::InternalError("the request could not be carried out");
}

GenerateCall::Sample::Sample(GenerateCall* call, uint32_t index, Request request, const Fork& fork)
    : call(call),
      index(index),
      loop(call->parts_.decode, std::move(request), call->received_, call->deadline_, fork,
           [this](v1::GenerateResponse chunk) { return Send(std::move(chunk)); }),
      pacer(std::make_shared<ChunkPacer>(
          call->executor_, call->parts_.stream_interval,
          [this](const v1::GenerateResponse& chunk) { unsent = this->call->writer_.Send(chunk); })),
      room(call->executor_) {}

asio::awaitable<absl::Status> GenerateCall::Sample::Send(v1::GenerateResponse chunk) {
  if (call->cancelled_) co_return absl::CancelledError("cancelled");
  chunk.set_sample(index);
  pacer->Add(std::move(chunk));
  while (unsent >= ChunkWriter::kMaxUnsent && !call->cancelled_ && Clock::now() < call->deadline_) {
    const bool stalls = co_await call->StallsUntil(room, call->deadline_);
    if (stalls && unsent >= ChunkWriter::kMaxUnsent) {
      co_return MakeError(
          absl::StatusCode::kResourceExhausted, "READER_TOO_SLOW",
          absl::StrCat("the client has read nothing for ", Seconds(call->parts_.read_patience), " s"));
    }
  }
  co_return call->cancelled_ ? absl::CancelledError("cancelled") : absl::OkStatus();
}

GenerateCall::GenerateCall(const ServiceParts* parts, grpc::CallbackServerContext* call,
                           const grpc::ByteBuffer& request, v1::RequestContext context, Span span,
                           std::string client)
    : parts_(*parts),
      executor_(parts->decode.executor),
      parse_status_(ParseMessage(request, &proto_, kMaxRequestObjects)),
      context_(std::move(context)),
      span_(std::move(span)),
      client_(std::move(client)),
      deadline_(DeadlineOf(call->raw_deadline())),
      received_(Clock::now()),
      writer_(call),
      running_(executor_),
      interrupted_(executor_),
      read_(executor_) {}

void GenerateCall::Start() {
  auto self = shared_from_this();
  const auto post = [self](void (GenerateCall::*method)()) {
    return [self, method] { asio::post(self->executor_, [self, method] { (self.get()->*method)(); }); };
  };
  writer_.SetHandlers({post(&GenerateCall::OnRoom), post(&GenerateCall::OnCancel), [self]() mutable {
                         // `self` may be the last reference, and the writer must outlive this handler.
                         const auto& executor = self->executor_;
                         asio::post(executor, [self = std::move(self)] {
                           self->done_ = true;
                           self->read_.Notify();
                           self->writer_.SetHandlers({});
                         });
                       }});
  asio::co_spawn(
      executor_, [self] { return self->Run(); }, asio::detached);
}

void GenerateCall::Interrupt(absl::Status reason) {
  if (cancelled_) return;
  cancelled_ = true;
  interruption_ = std::move(reason);
  for (const auto& waits : {ticket_.get(), parsing_.get()}) {
    if (waits != nullptr) waits->Cancel();
  }
  interrupted_.Notify();
  OnRoom();
  for (const auto& sample : samples_) sample->loop.Stop();
  if (search_ != nullptr) search_->Stop();
}

asio::awaitable<void> GenerateCall::Run() {
  absl::Status status;
  try {
    absl::StatusOr<Request> request = co_await Admit();
    status = request.status();
    if (request.ok() && request->beam) {
      status = co_await RunSearch(*std::move(request));
    } else if (request.ok()) {
      status = co_await RunSamples(*std::move(request));
    }
  } catch (...) {
    status = Failure(std::current_exception());
  }
  ticket_ = nullptr;
  if (begun()) {
    LogEnd(status);
  } else {
    LogInfo("request refused", {{"request_id", context_.request_id()},
                                {"traceparent", context_.traceparent()},
                                {"code", absl::StatusCodeToString(status.code())},
                                {"error", status.message()}});
  }
  EndSpan(status);
  parts_.decode.metrics->OnRequestEnd(absl::StatusCodeToString(status.code()));
  // Leaves out requests that were refused for their content or because too many wait.
  const bool is_refusal = !begun() && (absl::IsInvalidArgument(status) || absl::IsResourceExhausted(status));
  if (!is_refusal) parts_.decode.metrics->OnRequestTime(Seconds(Clock::now() - received_));
  writer_.End(ToGrpc(status));
  // Waits until the client has read everything or has stopped reading.
  while (!done_) {
    const bool stalls = co_await StallsUntil(read_, Clock::time_point::max());
    if (!stalls || done_) continue;
    writer_.Abandon();
    break;
  }
}

asio::awaitable<bool> GenerateCall::StallsUntil(Event& event, Clock::time_point deadline) {
  const uint64_t before = writer_.written();
  const Clock::time_point end = Clock::now() + parts_.read_patience;
  co_await event.Wait(std::min(deadline, end));
  co_return Clock::now() >= end&& writer_.written() == before;
}

asio::awaitable<absl::StatusOr<Request>> GenerateCall::Admit() {
  if (cancelled_) co_return interruption_;
  if (!parse_status_.ok()) co_return parse_status_;
  // An `n` or a beam width that is out of range is refused later, when the request is parsed.
  const int texts = static_cast<int>(proto_.has_beam() ? proto_.beam().width() : proto_.n());
  const int samples = std::clamp(texts, 1, parts_.defaults.max_samples);
  auto ticket = parts_.admission->Enter(client_, samples,
                                        [this](absl::Status reason) { Interrupt(std::move(reason)); });
  if (!ticket.ok()) co_return ticket.status();
  ticket_ = *std::move(ticket);
  if (absl::Status status = co_await ticket_->WaitForTurn(deadline_); !status.ok()) co_return status;
  if (absl::Status status = co_await WaitForTarget(); !status.ok()) co_return status;
  absl::StatusOr<Request> request = co_await Parse();
  if (cancelled_) co_return interruption_;
  if (request.ok()) {
    if (absl::Status status = co_await Compile(*request); !status.ok()) co_return status;
    request->context = context_;
    if (parts_.cache_key) request->params.set_cache_salt(CacheSalt(client_, *parts_.cache_key));
  }
  co_return request;
}

asio::awaitable<absl::Status> GenerateCall::WaitForTarget() {
  const Clock::time_point end =
      std::min(deadline_, Clock::now() + parts_.decode.targets->link_options().patience);
  while (parts_.decode.targets->info() == nullptr && !cancelled_ && Clock::now() < end) {
    co_await parts_.decode.targets->WaitChange(interrupted_, end);
  }
  if (cancelled_) co_return interruption_;
  if (parts_.decode.targets->info() != nullptr) co_return absl::OkStatus();
  if (Clock::now() >= deadline_) co_return absl::DeadlineExceededError("deadline exceeded");
  co_return MakeError(absl::StatusCode::kUnavailable, "TARGET_UNAVAILABLE",
                      "no target has been reachable yet");
}

asio::awaitable<absl::StatusOr<Request>> GenerateCall::Parse() {
  const auto parse = [this, target = *parts_.decode.targets->info()] {
    return ParseRequest(proto_, parts_.defaults, *parts_.decode.tokenizer, target);
  };
  if (proto_.ByteSizeLong() <= kMaxParsedHere) co_return parse();
  co_return co_await parts_.parsers->Run(client_, deadline_, parsing_, parse);
}

asio::awaitable<absl::Status> GenerateCall::Compile(Request& request) {
  const v1::SamplingParams& sampling = request.params.sampling();
  if (!sampling.has_grammar()) co_return absl::OkStatus();
  const auto compiled = std::make_shared<std::optional<GrammarCache::Result>>();
  // ParseRequest has checked the grammar's form.
  parts_.grammars->Get(*ParseGrammar(sampling.grammar()),
                       [compiled, self = shared_from_this()](const GrammarCache::Result& result) {
                         asio::post(self->executor_, [compiled, self, result] {
                           *compiled = result;
                           self->interrupted_.Notify();
                         });
                       });
  while (!*compiled && !cancelled_ && Clock::now() < deadline_) co_await interrupted_.Wait(deadline_);
  if (cancelled_) co_return interruption_;
  if (!*compiled) co_return absl::DeadlineExceededError("deadline exceeded");
  if (!(*compiled)->ok()) co_return FieldErrorUnder("sampling", (*compiled)->status());
  request.grammar = ***compiled;
  if (request.grammar->bytes() > kMaxGrammarOfBytes) {
    co_return FieldError(
        "sampling.grammar", "one with fewer states",
        absl::StrCat("compiled it has ", request.grammar->bytes(), " bytes, more than ", kMaxGrammarOfBytes));
  }
  co_return absl::OkStatus();
}

asio::awaitable<absl::Status> GenerateCall::RunSamples(Request request) {
  wanted_samples_ = static_cast<uint32_t>(request.samples);
  samples_.push_back(std::make_unique<Sample>(this, 0, std::move(request), Fork()));
  Spawn(*samples_[0]);
  co_await running_.Wait();
  // The first sample stayed on the servers for as long as another might be forked from it.
  samples_[0]->loop.Stop();
  co_return cancelled_ ? interruption_ : absl::OkStatus();
}

asio::awaitable<absl::Status> GenerateCall::RunSearch(Request request) {
  search_ = std::make_unique<BeamLoop>(parts_.decode, parts_.beam_choices.get(), std::move(request),
                                       received_, deadline_);
  absl::Status status = co_await search_->Run();
  if (cancelled_) co_return interruption_;
  if (!status.ok()) co_return status;
  parts_.decode.metrics->OnSearch(search_->stats().rounds(), search_->steps());
  for (const BeamLoop::Text& text : search_->Found()) {
    if (text.chunk.sample() == 0) {
      parts_.decode.metrics->OnFirstToken(text.progress.first_token_seconds,
                                          search_->request().prompt.size());
    }
    parts_.decode.metrics->OnEmitted(text.chunk);
    writer_.Send(text.chunk);
  }
  co_return absl::OkStatus();
}

void GenerateCall::Spawn(Sample& sample) {
  running_.Spawn(RunSample(sample), [this](const std::exception_ptr& exception) {
    if (exception) Interrupt(Failure(exception));
  });
}

asio::awaitable<void> GenerateCall::RunSample(Sample& sample) {
  parts_.decode.policy->Begin();
  const Generation& generation = sample.loop.generation;
  absl::Status status;
  try {
    status = co_await sample.loop.ComputePrompt();
    // Without a round there is no first token: there was an error, or the resumed tokens ended the text.
    if (sample.index == 0 && generation.stats().rounds() > 0) {
      parts_.decode.metrics->OnFirstToken(generation.progress().first_token_seconds,
                                          generation.request().prompt.size());
    }
    if (status.ok() && sample.index == 0) StartSiblings();
    if (status.ok()) status = co_await sample.loop.Decode();
  } catch (...) {
    status = Failure(std::current_exception());
  }
  sample.pacer->Flush();
  parts_.decode.policy->End();
  parts_.decode.metrics->OnSampleEnd(generation.progress());
  if (!status.ok()) Interrupt(status);
  if (sample.index > 0) sample.loop.Stop();
}

void GenerateCall::StartSiblings() {
  const Generation& first = samples_[0]->loop.generation;
  while (samples_.size() < wanted_samples_) {
    const auto index = static_cast<uint32_t>(samples_.size());
    Request request = first.request();
    request.prompt_logprobs = -1;
    request.echo = false;
    request.params.set_sample_index(request.params.sample_index() + index);
    // The fork omits the prompt's last token, since a sequence's last token is always fed again.
    const Fork fork{first.sequence_id(), request.prompt.size() - 1};
    samples_.push_back(std::make_unique<Sample>(this, index, std::move(request), fork));
    Spawn(*samples_.back());
  }
}

GenerateCall::Totals GenerateCall::totals() const {
  if (search_ != nullptr) return {search_->steps(), search_->stats()};
  Totals totals;
  for (const auto& sample : samples_) {
    totals.emitted += sample->loop.generation.emitted();
    AddCounts(sample->loop.generation.stats(), &totals.stats);
  }
  return totals;
}

void GenerateCall::EndSpan(const absl::Status& status) {
  if (!span_.records()) return;
  const std::string operation = proto_.has_chat() ? "chat" : "text_completion";
  const v1::ServerInfo* const target = parts_.decode.targets->info();
  const std::string model = target != nullptr ? target->model() : "";
  span_.SetName(absl::StrCat(operation, model.empty() ? "" : " ", model));
  span_.Set({{"gen_ai.operation.name", operation},
             {"gen_ai.provider.name", "outrider"},
             {"gen_ai.request.model", model},
             {"gen_ai.response.model", model},
             {"gen_ai.response.id", context_.request_id()}});
  span_.SetStatus(status);
  if (begun()) {
    const v1::SamplingParams& sampling = request().params.sampling();
    const Totals all = totals();
    span_.Set({{"gen_ai.request.max_tokens", request().max_tokens},
               {"gen_ai.request.choice.count", request().samples},
               {"gen_ai.request.temperature", sampling.has_temperature() ? sampling.temperature() : 1.0},
               {"gen_ai.request.top_p", sampling.has_top_p() ? sampling.top_p() : 1.0},
               {"gen_ai.usage.input_tokens", request().prompt.size()},
               {"gen_ai.usage.output_tokens", all.emitted},
               {"outrider.rounds", all.stats.rounds()},
               {"outrider.drafted", all.stats.drafted()},
               {"outrider.accepted", all.stats.accepted()},
               {"outrider.acceptance_rate", AcceptanceRate(all.stats)}});
    if (proto_.has_seed()) span_.Set({{"gen_ai.request.seed", proto_.seed()}});
    std::vector<std::string> reasons;
    for (const auto& sample : samples_) {
      const Generation& generation = sample->loop.generation;
      if (generation.finish_reason()) reasons.push_back(NameOf(*generation.finish_reason()));
      if (sample->index > 0 || generation.stats().rounds() == 0) continue;
      span_.Set({{"outrider.first_token_seconds", generation.progress().first_token_seconds}});
    }
    span_.SetList("gen_ai.response.finish_reasons", reasons);
  }
  span_.End();
}

void GenerateCall::LogEnd(const absl::Status& status) const {
  const auto [emitted, stats] = totals();
  LogInfo("request",
          {{"request_id", context_.request_id()},
           {"traceparent", context_.traceparent()},
           {"sequence",
            search_ != nullptr ? "" : absl::BytesToHexString(samples_[0]->loop.generation.sequence_id())},
           {"code", absl::StatusCodeToString(status.code())},
           {"error", status.message()},
           {"prompt_tokens", request().prompt.size()},
           {"samples", request().samples},
           {"beam_width", request().candidates > 0 ? request().beam->width() : 0},
           {"completion_tokens", emitted},
           {"rounds", stats.rounds()},
           {"drafted", stats.drafted()},
           {"accepted", stats.accepted()},
           {"acceptance_rate", AcceptanceRate(stats)},
           {"seconds", Seconds(Clock::now() - received_)}});
}

}  // namespace outrider
