// The public gRPC service, and one call of Generate: its samples, and the stream to its client.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/net/asio.h"
#include "coordinator/admission/admission.h"
#include "coordinator/api/chunk_writer.h"
#include "coordinator/api/parse_request.h"
#include "coordinator/decode/beam_loop.h"
#include "coordinator/decode/round_loop.h"
#include "coordinator/servers/grpc_timer.h"
#include "outrider/v1/inference.grpc.pb.h"

namespace outrider {

// What the public service and its calls share. Outlives the service. The executor has one thread.
struct ServiceParts {
  DecodeParts decode;
  asio::any_io_executor parsers;  // threads for requests that take long to parse
  Admission* parsing;             // whose turn it is on those threads
  bool mixed_numerics;            // targets may compute different bits
  RequestDefaults defaults;
  Admission* admission;
  bool checks_tokens;                    // each gRPC call carries a known bearer token
  std::optional<std::string> cache_key;  // for CacheSalt; without it clients share the prefix cache
  Clock::duration stream_interval;       // between chunks to one client
  Clock::duration read_patience = std::chrono::seconds(50);  // with clients that do not read
  std::shared_ptr<BeamChoices> beam_choices = std::make_shared<BeamChoices>();
};

// Lives until gRPC and its coroutines are done with it. Executor thread, unless stated.
class GenerateCall final : public std::enable_shared_from_this<GenerateCall> {
 public:
  // `client` identifies the caller (ReadClient).
  GenerateCall(const ServiceParts* parts, grpc::CallbackServerContext* call, const grpc::ByteBuffer& request,
               v1::RequestContext context, std::string client, Clock::time_point deadline);

  ChunkWriter* writer() { return &writer_; }

  // Call once, from gRPC's thread.
  void Start();

 private:
  // One of the continuations. Later ones begin as copies of the first, once its prompt is computed.
  struct Sample {
    Sample(GenerateCall* call, uint32_t index, Request request, const Fork& fork);
    // Waits until the client has caught up. RESOURCE_EXHAUSTED, reason READER_TOO_SLOW, if it does not.
    asio::awaitable<absl::Status> Send(v1::GenerateResponse chunk);

    GenerateCall* const call;
    const uint32_t index;
    RoundLoop loop;
    const std::shared_ptr<ChunkPacer> pacer;
    size_t unsent = 0;  // chunks after the last send, unless the client has caught up since
    Event room;         // the client has caught up
  };

  asio::awaitable<void> Run();
  // Waits for the event, or as long as a client may go without reading. Returns whether it has read nothing.
  asio::awaitable<bool> StallsUntil(Event& event, Clock::time_point deadline);
  // Waits for the call's turn, and for a target if there was none yet; only then parses the request.
  asio::awaitable<absl::StatusOr<Request>> Admit();
  asio::awaitable<absl::Status> WaitForTarget();
  asio::awaitable<absl::StatusOr<Request>> Parse();
  void Interrupt(absl::Status reason);
  asio::awaitable<absl::Status> RunSamples(Request request);
  asio::awaitable<absl::Status> RunSearch(Request request);
  void Spawn(Sample& sample);
  asio::awaitable<void> RunSample(Sample& sample);
  void StartSiblings();
  void OnRoom();
  void OnCancel() { Interrupt(absl::CancelledError("cancelled by the client")); }
  // Whether the call was let in and its request could be read.
  bool begun() const { return !samples_.empty() || search_ != nullptr; }
  void LogEnd(const absl::Status& status) const;

  const ServiceParts& parts_;
  const asio::any_io_executor executor_;
  v1::GenerateRequest proto_;
  const absl::Status readable_;  // whether proto_ is what the client sent
  const v1::RequestContext context_;
  const std::string client_;
  const Clock::time_point deadline_;
  const Clock::time_point received_;
  ChunkWriter writer_;
  std::unique_ptr<Admission::Ticket> ticket_;  // from the queue until the samples have ended
  std::unique_ptr<Admission::Ticket> parsing_;
  std::vector<std::unique_ptr<Sample>> samples_;
  std::unique_ptr<BeamLoop> search_;  // instead of samples_
  uint32_t wanted_samples_ = 0;
  TaskGroup running_;  // the samples
  Event interrupted_;  // cancelled_ is true now
  bool cancelled_ = false;
  bool done_ = false;  // with the stream
  Event read_;         // done_ is true now
  absl::Status interruption_;
};

// gRPC calls in from its threads; everything else happens on the executor.
class InferenceService final : public v1::Inference::WithRawCallbackMethod_Generate<
                                   v1::Inference::WithRawCallbackMethod_Describe<v1::Inference::Service>> {
 public:
  explicit InferenceService(ServiceParts parts) : parts_(std::move(parts)) {}

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;

  // Generations whose end has not been sent yet. Thread-safe.
  int unfinished() const { return unfinished_; }

 private:
  // On the executor.
  v1::DescribeResponse Description() const;

  std::atomic<int> unfinished_ = 0;
  const ServiceParts parts_;
};

}  // namespace outrider
