// The server's end of a bidirectional stream of batched items.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "common/rpc/error.h"
#include "common/rpc/outbox.h"
#include "common/rpc/parse_message.h"
#include "outrider/v1/sequence.pb.h"

namespace outrider {

// The bytes of answers that may wait for one reader. A round's answers are a few hundred bytes each, and
// those with dense distributions over a large vocabulary a few megabytes; a reader that is this far behind
// has stopped.
inline constexpr size_t kMaxWaitingBytes = size_t{256} << 20;

// The open streams of a service, so that they can be ended at shutdown. Thread-safe; must outlive its
// streams.
template <class Stream>
class StreamSet {
 public:
  // False if the stream is not to be served: the service ends.
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
  // Refuses new streams from now on.
  void Close() {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
  }
  // Ends every stream with UNAVAILABLE, reason DRAINING, once the answers that it was given are written.
  void EndAll() {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
    for (Stream* stream : streams_) stream->End(Ending());
  }
  static grpc::Status Ending() {
    return ToGrpc(MakeError(absl::StatusCode::kUnavailable, "DRAINING", "shutting down"));
  }

 private:
  absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::flat_hash_set<Stream*> streams_ ABSL_GUARDED_BY(mutex_);
};

// What a raw method of a service returns: messages are parsed here, since gRPC would end a stream with OK at
// one that it cannot parse.
using BatchReactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

// One stream from one coordinator. Sends the server's ServerInfo first, then passes each item to `on_item`
// together with the outbox for its answer. Deletes itself in OnDone.
//
// A coordinator that sends but does not read loses its stream with RESOURCE_EXHAUSTED, reason
// READER_TOO_SLOW, when more than `max_waiting_bytes` of answers wait; it sees the end once it reads again.
// One that sends what is no Request loses it with the error of ParseMessage.
//
// `on_item` is called from gRPC's threads, one call at a time per stream, and must not block.
template <class Request, class Response>
class BatchServerStream final : public BatchReactor {
 public:
  using RequestItem = typename Outbox<Request>::Item;
  using ItemFn = std::function<void(RequestItem&&, const std::shared_ptr<Outbox<Response>>&)>;
  using Set = StreamSet<BatchServerStream>;

  BatchServerStream(const v1::ServerInfo& info, ItemFn on_item, Set* set,
                    size_t max_waiting_bytes = kMaxWaitingBytes)
      : on_item_(std::move(on_item)),
        set_(set),
        outbox_(std::make_shared<Outbox<Response>>(
            [this](const Response& message) {
              response_ = SerializeMessage(message);
              StartWrite(&response_);
            },
            max_waiting_bytes)) {
    if (!set_->Add(this)) {
      End(Set::Ending());
      return;
    }
    Response first;
    *first.mutable_info() = info;
    outbox_->PostFirst(std::move(first));
    StartRead(&bytes_);
  }

  // Takes no answers from now on, writes those that wait, and ends the stream. The first call counts.
  // Thread-safe until OnDone.
  void End(grpc::Status status) {
    absl::MutexLock lock(&mutex_);
    if (!end_) end_ = std::move(status);
    FinishIfIdle();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return End(grpc::Status::OK);
    // What comes later than the end is not begun: the end is its answer.
    if (!outbox_->open()) return;
    if (absl::Status status = ParseMessage(bytes_, &request_); !status.ok()) return End(ToGrpc(status));
    for (RequestItem& item : *BatchField(request_)) on_item_(std::move(item), outbox_);
    StartRead(&bytes_);
  }

  void OnWriteDone(bool ok) override {
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

  void OnDone() override {
    set_->Remove(this);
    outbox_->Close();
    delete this;
  }

 private:
  // gRPC allows one call of Finish, with no write in flight.
  void FinishIfIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (finished_ || !outbox_->Seal()) return;
    finished_ = true;
    Finish(*end_);
  }

  const ItemFn on_item_;
  Set* const set_;
  const std::shared_ptr<Outbox<Response>> outbox_;
  grpc::ByteBuffer bytes_;  // of the request that is read
  Request request_;
  grpc::ByteBuffer response_;  // that is written
  absl::Mutex mutex_;
  std::optional<grpc::Status> end_ ABSL_GUARDED_BY(mutex_);
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace outrider
