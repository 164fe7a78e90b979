// The server's end of bidirectional streams of batched items.
#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/async_stream.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "common/rpc/error.h"
#include "common/rpc/outbox.h"
#include "common/rpc/parse_message.h"
#include "common/rpc/queue_poller.h"
#include "common/rpc/server.h"
#include "outrider/v1/sequence.pb.h"

namespace outrider {

// The most bytes of answers that may wait for one reader. A round's answer takes a few hundred bytes, or a
// few megabytes with dense distributions over a large vocabulary. A reader that is this far behind has
// stopped.
inline constexpr size_t kMaxWaitingBytes = size_t{256} << 20;

// A stream of a raw method: messages are parsed here, since gRPC would end a stream with OK at one that it
// cannot parse.
using RawStream = grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;

// The load of a server.
struct ServerLoad {
  int items = 0;      // waiting or in progress, on all streams
  float kv_used = 0;  // share of the KV cache's blocks
};

// The streams of one method, each from one coordinator. Sends the server's ServerInfo first, then passes each
// item to `on_item` together with the outbox for its answer. Each message carries the current `load`, and
// whether the server is going away.
//
// A coordinator that sends but does not read loses its stream with RESOURCE_EXHAUSTED, reason
// READER_TOO_SLOW, when more than `max_waiting_bytes` of answers wait; it sees the end once it reads again.
// One that sends anything but a Request loses it with the error of ParseMessage.
//
// `on_item` is called on a thread that polls the queue, one call at a time per stream, and must not block.
// Thread-safe; must outlive its server.
template <class Request, class Response>
class BatchServer {
 public:
  using RequestItem = typename Outbox<Request>::Item;
  using ItemFn = std::function<void(RequestItem&&, const std::shared_ptr<Outbox<Response>>&)>;
  // Calls the service's own Request<Method>.
  using RequestCallFn =
      std::function<void(grpc::ServerContext*, RawStream*, grpc::ServerCompletionQueue*, QueueTag*)>;

  using LoadFn = std::function<ServerLoad()>;  // any thread

  BatchServer(const v1::ServerInfo& info, ItemFn on_item, LoadFn load,
              size_t max_waiting_bytes = kMaxWaitingBytes)
      : info_(info),
        on_item_(std::move(on_item)),
        load_(std::move(load)),
        max_waiting_bytes_(max_waiting_bytes) {}

  // Accepts streams from now on. `server` must have been started with a poller.
  void Serve(RpcServer& server, RequestCallFn request_call) {
    poller_ = server.poller();
    queue_ = server.queue();
    request_call_ = std::move(request_call);
    new Stream(this);
  }
  // Refuses new streams from now on, and tells the running ones that the server is going away.
  void Close() {
    {
      absl::MutexLock lock(&mutex_);
      closed_ = true;
    }
    going_away_ = true;
    ForEach([](Stream* stream) { stream->outbox().PostEmpty(); });
  }
  // Answers given between Hold and Release are sent together.
  void Hold() {
    ForEach([](Stream* stream) { stream->outbox().Hold(); });
  }
  void Release() {
    ForEach([](Stream* stream) { stream->outbox().Release(); });
  }
  // Ends every stream with UNAVAILABLE, reason DRAINING, once its answers are written.
  void EndAll() {
    ForEach([](Stream* stream) { stream->End(Ending()); });
  }

 private:
  class Stream;

  static grpc::Status Ending() {
    return ToGrpc(MakeError(absl::StatusCode::kUnavailable, "DRAINING", "shutting down"));
  }
  template <class Fn>
  void ForEach(Fn fn) {
    absl::MutexLock lock(&mutex_);
    for (Stream* stream : streams_) fn(stream);
  }
  // Returns false if the server is ending; the stream must then not be served.
  bool Add(Stream* stream) {
    absl::MutexLock lock(&mutex_);
    if (closed_) return false;
    streams_.insert(stream);
    return true;
  }
  void Remove(Stream* stream) {
    absl::MutexLock lock(&mutex_);
    streams_.erase(stream);
  }

  const v1::ServerInfo& info_;
  const ItemFn on_item_;
  const LoadFn load_;
  std::atomic<bool> going_away_ = false;
  const size_t max_waiting_bytes_;
  QueuePoller* poller_ = nullptr;
  grpc::ServerCompletionQueue* queue_ = nullptr;
  RequestCallFn request_call_;
  absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::flat_hash_set<Stream*> streams_ ABSL_GUARDED_BY(mutex_);
};

// Waits for a call, serves it, and deletes itself when the last of its operations has ended.
template <class Request, class Response>
class BatchServer<Request, Response>::Stream {
 public:
  explicit Stream(BatchServer* server)
      : server_(server),
        outbox_(std::make_shared<Outbox<Response>>(
            [this](Response& message) {
              const ServerLoad load = server_->load_();
              message.set_load(static_cast<uint32_t>(load.items));
              if constexpr (requires { message.set_kv_used(load.kv_used); })
                message.set_kv_used(load.kv_used);
              message.set_going_away(server_->going_away_);
              Begin();
              stream_.Write(SerializeMessage(message), &written_);
            },
            server->max_waiting_bytes_)) {
    Begin();
    server_->poller_->Join();
    server_->request_call_(&context_, &stream_, server_->queue_, &called_);
  }

  Outbox<Response>& outbox() { return *outbox_; }

  // Stops taking answers, writes those that wait, and ends the stream. Only the first call counts.
  // Thread-safe.
  void End(grpc::Status status) {
    absl::MutexLock lock(&mutex_);
    if (!end_) end_ = std::move(status);
    FinishIfIdle();
  }

 private:
  // Counts an operation whose end a tag will report, or the call itself, which ends with its Finish.
  void Begin() { running_.fetch_add(1); }
  QueueTag Tag(void (Stream::*on_end)(bool ok)) {
    return QueueTag([this, on_end, poller = server_->poller_](bool ok) {
      (this->*on_end)(ok);
      if (running_.fetch_sub(1) > 1) return;
      QueuePoller* const left = poller;  // copied, since `delete this` destroys the lambda
      delete this;
      left->Leave();
    });
  }

  void OnCall(bool ok) {
    if (!ok) return;  // the server is shutting down
    Begin();
    new Stream(server_);
    if (!server_->Add(this)) return End(Ending());
    Response first;
    *first.mutable_info() = server_->info_;
    outbox_->PostFirst(std::move(first));
    Read();
  }

  // Each read makes gRPC send the client a window update, which costs a system call here and wakes a thread
  // there. Neither should delay work on the items.
  void Read() {
    Begin();
    server_->poller_->BeginLater([this] { stream_.Read(&bytes_, &read_done_); });
  }
  void OnRead(bool ok) {
    if (!ok) return End(grpc::Status::OK);
    // Items that come after the end are dropped: the stream's status is their answer.
    if (!outbox_->open()) return;
    if (absl::Status status = ParseMessage(bytes_, &request_); !status.ok()) return End(ToGrpc(status));
    for (RequestItem& item : *BatchField(request_)) server_->on_item_(std::move(item), outbox_);
    Read();
  }

  void OnWritten(bool ok) {
    // A failed write means that the client is gone.
    if (!ok) outbox_->Close();
    outbox_->OnWritten();
    if (outbox_->overflowed()) {
      return End(ToGrpc(MakeError(absl::StatusCode::kResourceExhausted, "READER_TOO_SLOW",
                                  "the answers on this stream are not read")));
    }
    if (!ok) return End(grpc::Status::CANCELLED);
    absl::MutexLock lock(&mutex_);
    if (end_) FinishIfIdle();
  }

  // gRPC allows one call of Finish, with no write in flight.
  void FinishIfIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (finishing_ || !outbox_->Seal()) return;
    finishing_ = true;
    Begin();
    stream_.Finish(*end_, &finished_);
  }
  void OnFinished(bool /*ok*/) {
    server_->Remove(this);
    outbox_->Close();
    running_.fetch_sub(1);
  }

  BatchServer* const server_;
  grpc::ServerContext context_;
  RawStream stream_{&context_};
  const std::shared_ptr<Outbox<Response>> outbox_;
  std::atomic<int> running_ = 0;  // operations in flight
  QueueTag called_ = Tag(&Stream::OnCall);
  QueueTag read_done_ = Tag(&Stream::OnRead);
  QueueTag written_ = Tag(&Stream::OnWritten);
  QueueTag finished_ = Tag(&Stream::OnFinished);
  grpc::ByteBuffer bytes_;  // of the request that is read
  Request request_;
  absl::Mutex mutex_;
  std::optional<grpc::Status> end_ ABSL_GUARDED_BY(mutex_);
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace outrider
