#include "coordinator/inference_service.h"

#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <deque>

#include "common/rpc/error.h"
#include "coordinator/run_generation.h"
#include "coordinator/verifier.h"

namespace outrider {
namespace {

// Chunks that a client may be behind before its generation waits for it.
constexpr size_t kMaxUnread = 64;

// The stream to one client. Belongs to gRPC until OnDone.
class Writer final : public grpc::ServerWriteReactor<v1::GenerateResponse> {
 public:
  struct Handlers {
    std::function<void()> on_room, on_cancel, on_done;  // gRPC's threads
  };

  // Before anything is sent.
  void SetHandlers(Handlers handlers) { handlers_ = std::move(handlers); }

  // Queues a chunk. Returns how many are unsent.
  size_t Send(v1::GenerateResponse chunk) {
    absl::MutexLock lock(&mutex_);
    queue_.push_back(std::move(chunk));
    if (!writing_) WriteNext();
    return queue_.size();
  }

  // Ends the stream after what is queued.
  void End(grpc::Status status) {
    absl::MutexLock lock(&mutex_);
    end_ = std::move(status);
    if (!writing_) Finish(*end_);
  }

  void OnWriteDone(bool ok) override {
    bool room = false;
    {
      absl::MutexLock lock(&mutex_);
      writing_ = false;
      queue_.pop_front();
      if (!ok) queue_.clear();
      room = queue_.size() == kMaxUnread / 2 || !ok;
      if (!queue_.empty()) {
        WriteNext();
      } else if (end_) {
        Finish(*end_);
      }
    }
    if (room) handlers_.on_room();
  }
  void OnCancel() override { handlers_.on_cancel(); }
  void OnDone() override {
    // What it sets off may destroy this writer before it returns here.
    const auto on_done = std::move(handlers_.on_done);
    on_done();
  }

 private:
  void WriteNext() {
    writing_ = true;
    if (queue_.size() == 1 && end_) {
      StartWriteLast(&queue_.front(), grpc::WriteOptions());
    } else {
      StartWrite(&queue_.front());
    }
  }

  Handlers handlers_;
  absl::Mutex mutex_;
  std::deque<v1::GenerateResponse> queue_;
  std::optional<grpc::Status> end_;
  bool writing_ = false;
};

}  // namespace

// One call of Generate. Lives until gRPC and the coroutine are both done with it.
class GenerateCall final : public Sink, public std::enable_shared_from_this<GenerateCall> {
 public:
  GenerateCall(InferenceService* service, const v1::GenerateRequest* request, Clock::time_point deadline)
      : service_(service),
        proto_(request),
        deadline_(deadline),
        received_(Clock::now()),
        room_(service->parts_.executor) {}

  Writer* writer() { return &writer_; }

  // Called once, from gRPC's thread.
  void Start() {
    auto self = shared_from_this();
    const auto post = [self](void (GenerateCall::*method)()) {
      return [self, method] {
        asio::post(self->service_->parts_.executor, [self, method] { (self.get()->*method)(); });
      };
    };
    writer_.SetHandlers({post(&GenerateCall::OnRoom), post(&GenerateCall::OnCancel), [self]() mutable {
                           // The writer must outlive this call of its own, and the last reference may be
                           // here.
                           auto& executor = self->service_->parts_.executor;
                           asio::post(executor, [self = std::move(self)] { self->writer_.SetHandlers({}); });
                         }});
    asio::co_spawn(
        service_->parts_.executor, [self] { return self->Run(); }, asio::detached);
  }

  asio::awaitable<absl::Status> Send(v1::GenerateResponse chunk) override {
    if (cancelled_) co_return absl::CancelledError("cancelled");
    if (writer_.Send(std::move(chunk)) >= kMaxUnread && !cancelled_) co_await room_.Wait(deadline_);
    co_return cancelled_ ? absl::CancelledError("cancelled") : absl::OkStatus();
  }

  // Ends the generation where it is.
  void Interrupt(absl::Status reason) {
    if (cancelled_) return;
    cancelled_ = true;
    interruption_ = std::move(reason);
    room_.Notify();
    StopServers();
  }

 private:
  void OnRoom() { room_.Notify(); }
  void OnCancel() { Interrupt(absl::CancelledError("cancelled by the client")); }

  asio::awaitable<void> Run() {
    const InferenceService::Parts& parts = service_->parts_;
    parts.metrics->OnRequestStart();
    absl::Status status = Admit();
    if (status.ok()) {
      service_->running_.insert(this);
      status = co_await RunGeneration(
          *generation_, {drafter_.get(), verifier_.get(), &service_->policy_, this, parts.metrics},
          deadline_);
      StopServers();
      service_->running_.erase(this);
      if (cancelled_) status = interruption_;
      LogEnd(status);
    } else {
      LogInfo("request refused",
              {{"code", absl::StatusCodeToString(status.code())}, {"error", std::string(status.message())}});
    }
    parts.metrics->OnRequestEnd(absl::StatusCodeToString(status.code()));
    writer_.End(ToGrpc(status));
  }

  absl::Status Admit() {
    const InferenceService::Parts& parts = service_->parts_;
    if (service_->draining_) {
      return MakeError(absl::StatusCode::kUnavailable, "DRAINING", "the coordinator is shutting down");
    }
    if (parts.target->info() == nullptr) {
      return MakeError(absl::StatusCode::kUnavailable, "TARGET_UNAVAILABLE",
                       "the target has not been reachable yet");
    }
    if (service_->running_.size() >= static_cast<size_t>(parts.max_requests)) {
      return BusyError("QUEUE_FULL",
                       absl::StrCat("as many requests as allowed are running: ", parts.max_requests),
                       absl::Milliseconds(200));
    }
    absl::StatusOr<Request> request =
        ParseRequest(*proto_, parts.defaults, *parts.tokenizer, *parts.target->info());
    if (!request.ok()) return request.status();
    drafter_ =
        MakeDrafter(request->drafter, parts.drafters, static_cast<int>(parts.target->info()->vocab_size()));
    verifier_ = std::make_unique<Verifier>(parts.target, parts.metrics);
    generation_ = std::make_unique<Generation>(*std::move(request), parts.tokenizer, received_);
    return absl::OkStatus();
  }

  // Once: whatever the servers hold of this generation is released.
  void StopServers() {
    if (servers_stopped_ || generation_ == nullptr) return;
    servers_stopped_ = true;
    if (drafter_ != nullptr) drafter_->Stop(*generation_);
    verifier_->Stop(*generation_);
  }

  void LogEnd(const absl::Status& status) {
    const double seconds = std::chrono::duration<double>(Clock::now() - received_).count();
    const v1::SpeculationStats& stats = generation_->stats();
    if (status.ok()) service_->parts_.metrics->OnFinish(generation_->finish(), seconds);
    LogInfo("request", {{"code", absl::StatusCodeToString(status.code())},
                        {"error", std::string(status.message())},
                        {"prompt_tokens", static_cast<int64_t>(generation_->request().prompt.size())},
                        {"completion_tokens", static_cast<int64_t>(generation_->emitted())},
                        {"rounds", static_cast<int64_t>(stats.rounds())},
                        {"drafted", static_cast<int64_t>(stats.drafted())},
                        {"accepted", static_cast<int64_t>(stats.accepted())},
                        {"seconds", seconds}});
  }

  InferenceService* const service_;
  const v1::GenerateRequest* const proto_;  // gRPC's, valid until the stream is finished
  const Clock::time_point deadline_;
  const Clock::time_point received_;
  Writer writer_;
  Event room_;
  std::unique_ptr<Drafter> drafter_;
  std::unique_ptr<Verifier> verifier_;
  std::unique_ptr<Generation> generation_;
  bool cancelled_ = false;
  bool servers_stopped_ = false;
  absl::Status interruption_;
};

grpc::ServerWriteReactor<v1::GenerateResponse>* InferenceService::Generate(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  const auto left = context->deadline() - std::chrono::system_clock::now();
  const bool has_deadline = context->deadline() != std::chrono::system_clock::time_point::max();
  const Clock::time_point deadline = has_deadline
                                         ? Clock::now() + std::chrono::duration_cast<Clock::duration>(left)
                                         : Clock::time_point::max();
  auto call = std::make_shared<GenerateCall>(this, request, deadline);
  call->Start();
  return call->writer();
}

void InferenceService::EndAll() {
  // Interrupting ends coroutines later, from the executor's queue; the set does not change here.
  for (GenerateCall* call : running_) {
    call->Interrupt(MakeError(absl::StatusCode::kUnavailable, "DRAINING",
                              "the coordinator is shutting down; resume_from continues this answer"));
  }
}

grpc::ServerUnaryReactor* InferenceService::Describe(grpc::CallbackServerContext* context,
                                                     const v1::DescribeRequest* /*request*/,
                                                     v1::DescribeResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  asio::post(parts_.executor, [this, response, reactor] {
    if (parts_.target->up()) *response->mutable_target() = *parts_.target->info();
    const DraftLink* draft = parts_.drafters.draft.get();
    if (draft != nullptr && draft->up()) *response->mutable_draft() = *draft->info();
    response->set_running(static_cast<uint32_t>(running_.size()));
    v1::SpeculationOptions* defaults = response->mutable_defaults();
    defaults->set_drafter(parts_.defaults.has_draft_service ? v1::DRAFTER_KIND_MODEL : v1::DRAFTER_KIND_NONE);
    defaults->set_draft_tokens(static_cast<uint32_t>(parts_.defaults.draft_tokens));
    defaults->set_rule(parts_.defaults.rule);
    if (parts_.target->info() != nullptr) {
      response->set_max_draft_tokens(parts_.target->info()->max_draft_tokens());
    }
    response->set_version(OUTRIDER_VERSION);
    response->set_degraded(draft != nullptr && !draft->up());
    response->set_tokenizer_fingerprint(parts_.tokenizer->Fingerprint());
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

}  // namespace outrider
