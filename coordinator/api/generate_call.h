// One call of Generate, and the writing and pacing of the chunks for its client.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/grammar/grammar_cache.h"
#include "common/grammar/vocabulary.h"
#include "common/net/asio.h"
#include "common/rpc/parse_message.h"
#include "coordinator/admission/admission.h"
#include "coordinator/admission/parser_threads.h"
#include "coordinator/api/parse_request.h"
#include "coordinator/decode/beam_loop.h"
#include "coordinator/decode/round_loop.h"
#include "coordinator/servers/grpc_timer.h"
#include "outrider/v1/inference.pb.h"

namespace outrider {

// Requests up to this many bytes are parsed on the executor, in a fraction of a millisecond.
inline constexpr size_t kMaxParsedHere = 4096;
// ParseMessage's limit on the strings and messages within a request.
inline constexpr size_t kMaxRequestObjects = size_t{1} << 16;

// The stream to one client. Belongs to gRPC until OnDone.
class ChunkWriter final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  // With this many chunks unsent, the generations wait for the client.
  static constexpr size_t kMaxUnsent = 64;

  struct Handlers {
    std::function<void()> on_room, on_cancel, on_done;  // called on gRPC's threads
  };

  explicit ChunkWriter(grpc::CallbackServerContext* context) : context_(*context) {}

  // Call before anything is sent.
  void SetHandlers(Handlers handlers) { handlers_ = std::move(handlers); }

  // Queues a chunk, or drops it after End. Returns the number of unsent chunks.
  size_t Send(const v1::GenerateResponse& chunk) {
    grpc::ByteBuffer bytes = SerializeMessage(chunk);
    absl::MutexLock lock(&mutex_);
    if (end_) return 0;
    queue_.push_back(std::move(bytes));
    if (!writing_) WriteNext();
    return queue_.size();
  }

  // Ends the stream once the queue has been sent.
  void End(grpc::Status status) {
    absl::MutexLock lock(&mutex_);
    end_ = std::move(status);
    if (!writing_) Finish(*end_);
  }

  // Chunks sent so far; shows whether the client reads.
  uint64_t written() {
    absl::MutexLock lock(&mutex_);
    return written_;
  }

  // Drops the chunks queued for a client that does not read them. Acts like a cancellation, even after End.
  void Abandon() {
    {
      absl::MutexLock lock(&mutex_);
      if (!writing_) return;
      // While this is set the stream does not finish, so the context stays valid.
      abandoning_ = true;
    }
    context_.TryCancel();
    absl::MutexLock lock(&mutex_);
    abandoning_ = false;
    if (!writing_ && end_) Finish(*end_);
  }

  void OnWriteDone(bool ok) override {
    bool room = false;
    {
      absl::MutexLock lock(&mutex_);
      writing_ = false;
      queue_.pop_front();
      if (ok) {
        ++written_;
      } else {
        queue_.clear();
      }
      room = queue_.size() == kMaxUnsent / 2 || !ok;
      if (!queue_.empty()) {
        WriteNext();
      } else if (end_ && !abandoning_) {
        Finish(*end_);
      }
    }
    if (room) handlers_.on_room();
  }
  void OnCancel() override { handlers_.on_cancel(); }
  void OnDone() override {
    // on_done may destroy this writer before it returns.
    const auto on_done = std::move(handlers_.on_done);
    on_done();
  }

 private:
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    writing_ = true;
    if (queue_.size() == 1 && end_) {
      StartWriteLast(&queue_.front(), grpc::WriteOptions());
    } else {
      StartWrite(&queue_.front());
    }
  }

  grpc::CallbackServerContext& context_;
  Handlers handlers_;
  absl::Mutex mutex_;
  std::deque<grpc::ByteBuffer> queue_ ABSL_GUARDED_BY(mutex_);
  std::optional<grpc::Status> end_ ABSL_GUARDED_BY(mutex_);
  uint64_t written_ ABSL_GUARDED_BY(mutex_) = 0;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool abandoning_ ABSL_GUARDED_BY(mutex_) = false;
};

// Merges chunks of a sample that come soon after one another. Each chunk that is sent wakes threads here and
// at the client, perhaps on the CPUs that run the models. Executor thread; held by shared_ptr.
class ChunkPacer : public std::enable_shared_from_this<ChunkPacer> {
 public:
  // Waits `interval` between calls of `send`, except for urgent chunks. Never calls it after destruction.
  ChunkPacer(const asio::any_io_executor& executor, Clock::duration interval,
             std::function<void(const v1::GenerateResponse&)> send)
      : interval_(interval), send_(std::move(send)), timer_(executor) {}

  // Sends the chunk with any that wait: at once if due, the last, traced, or with prompt log-probabilities.
  void Add(v1::GenerateResponse chunk) {
    const bool at_once =
        chunk.has_finish() || chunk.has_trace() || chunk.prompt_logprobs_size() > 0 || Clock::now() >= next_;
    const bool is_timed = waiting_.has_value();
    Join(std::move(chunk));
    if (at_once) return Flush();
    if (is_timed) return;
    timer_.expires_at(next_);
    timer_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
      if (auto pacer = weak.lock(); pacer && !error) pacer->Flush();
    });
  }

  void Flush() {
    timer_.cancel();
    if (!waiting_) return;
    next_ = Clock::now() + interval_;
    send_(*std::exchange(waiting_, std::nullopt));
  }

 private:
  void Join(v1::GenerateResponse&& chunk) {
    if (!waiting_) {
      waiting_ = std::move(chunk);
      return;
    }
    // MergeFrom appends repeated fields and overwrites the others.
    chunk.set_position(waiting_->position());
    chunk.set_text(waiting_->text() + chunk.text());
    waiting_->MergeFrom(chunk);
  }

  const Clock::duration interval_;
  const std::function<void(const v1::GenerateResponse&)> send_;
  GrpcTimer timer_;
  Clock::time_point next_;  // when the next chunk may be sent; at first any time
  std::optional<v1::GenerateResponse> waiting_;
};

// The parts that the service and its calls share. They outlive the service. The executor has one thread.
struct ServiceParts {
  DecodeParts decode;
  ParserThreads* parsers;
  bool mixed_numerics;  // targets may compute different bits
  RequestDefaults defaults;
  Admission* admission;
  bool checks_tokens;                    // each gRPC call carries a known bearer token
  std::optional<std::string> cache_key;  // for CacheSalt; without it clients share the prefix cache
  Clock::duration stream_interval;       // between chunks of one sample
  Clock::duration read_patience = std::chrono::seconds(50);  // with clients that read nothing
  std::shared_ptr<BeamChoices> beam_choices = std::make_shared<BeamChoices>();
  std::shared_ptr<GrammarCache> grammars = std::make_shared<GrammarCache>(BytesVocabulary);
};

// Logs an exception and returns the status with which its request ends; other requests go on. An exception
// means that memory ran out, or that there is a bug.
absl::Status Failure(const std::exception_ptr& exception);

// Lives until gRPC and its coroutines are done with it. Executor thread, unless stated.
class GenerateCall final : public std::enable_shared_from_this<GenerateCall> {
 public:
  // `span` is the request's; `context` has its traceparent. `client` identifies the caller (ReadClient).
  GenerateCall(const ServiceParts* parts, grpc::CallbackServerContext* call, const grpc::ByteBuffer& request,
               v1::RequestContext context, Span span, std::string client);

  ChunkWriter* writer() { return &writer_; }

  // Call once, from gRPC's thread.
  void Start();

 private:
  // One of the continuations. The others are forked from the first once its prompt is computed.
  struct Sample {
    Sample(GenerateCall* call, uint32_t index, Request request, const Fork& fork);
    // Sends, then waits if the client lags. RESOURCE_EXHAUSTED, reason READER_TOO_SLOW, if it stops reading.
    asio::awaitable<absl::Status> Send(v1::GenerateResponse chunk);

    GenerateCall* const call;
    const uint32_t index;
    RoundLoop loop;
    const std::shared_ptr<ChunkPacer> pacer;
    size_t unsent = 0;  // unsent chunks after the last send; 0 once the client has caught up
    Event room;         // notified when the client has caught up
  };

  asio::awaitable<void> Run();
  // Waits for the event, at most for read_patience. Returns whether the client read nothing for that long.
  asio::awaitable<bool> StallsUntil(Event& event, Clock::time_point deadline);
  // Waits for the call's turn, and for a target if none has been reached yet. Only then parses the request.
  asio::awaitable<absl::StatusOr<Request>> Admit();
  asio::awaitable<absl::Status> WaitForTarget();
  asio::awaitable<absl::StatusOr<Request>> Parse();
  // Compiles the grammar of a request that has one.
  asio::awaitable<absl::Status> Compile(Request& request);
  void Interrupt(absl::Status reason);
  asio::awaitable<absl::Status> RunSamples(Request request);
  asio::awaitable<absl::Status> RunSearch(Request request);
  void Spawn(Sample& sample);
  asio::awaitable<void> RunSample(Sample& sample);
  void StartSiblings();
  void OnRoom() {
    for (const auto& sample : samples_) {
      sample->unsent = 0;
      sample->room.Notify();
    }
  }
  void OnCancel() { Interrupt(absl::CancelledError("cancelled by the client")); }
  // Whether the call was admitted and its request is valid.
  bool begun() const { return !samples_.empty() || search_ != nullptr; }
  // For calls that have begun: the request, and the totals over all samples.
  const Request& request() const {
    return search_ != nullptr ? search_->request() : samples_[0]->loop.generation.request();
  }
  struct Totals {
    int64_t emitted = 0;
    v1::SpeculationStats stats;
  };
  Totals totals() const;
  void LogEnd(const absl::Status& status) const;
  // Ends the span, with the attributes of OpenTelemetry's conventions for generative AI
  // (https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/) and some of Outrider's own.
  void EndSpan(const absl::Status& status);

  const ServiceParts& parts_;
  const asio::any_io_executor executor_;
  v1::GenerateRequest proto_;
  const absl::Status parse_status_;  // OK if the client's bytes could be parsed into proto_
  const v1::RequestContext context_;
  Span span_;
  const std::string client_;
  const Clock::time_point deadline_;
  const Clock::time_point received_;
  ChunkWriter writer_;
  std::unique_ptr<Admission::Ticket> ticket_;  // held from Enter until the samples have ended
  std::unique_ptr<Admission::Ticket> parsing_;
  std::vector<std::unique_ptr<Sample>> samples_;
  std::unique_ptr<BeamLoop> search_;  // instead of samples_
  uint32_t wanted_samples_ = 0;
  TaskGroup running_;  // the samples
  Event interrupted_;  // notified when cancelled_ is set or a grammar is compiled
  bool cancelled_ = false;
  bool done_ = false;  // gRPC is done with the stream
  Event read_;         // notified when done_ is set
  absl::Status interruption_;
};

}  // namespace outrider
