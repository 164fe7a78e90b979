// The server's end of a bidirectional stream of batched items.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "common/rpc/outbox.h"
#include "outrider/v1/sequence.pb.h"

namespace outrider {

// The open streams of a service, so that they can be ended at shutdown. Thread-safe; must outlive its
// streams.
template <class Stream>
class StreamSet {
 public:
  void Add(Stream* stream) {
    absl::MutexLock lock(&mutex_);
    streams_.insert(stream);
  }
  void Remove(Stream* stream) {
    absl::MutexLock lock(&mutex_);
    streams_.erase(stream);
  }
  // Ends every stream with UNAVAILABLE once its write in flight is done.
  void EndAll() {
    absl::MutexLock lock(&mutex_);
    for (Stream* stream : streams_) stream->End(grpc::Status(grpc::StatusCode::UNAVAILABLE, "shutting down"));
  }

 private:
  absl::Mutex mutex_;
  absl::flat_hash_set<Stream*> streams_ ABSL_GUARDED_BY(mutex_);
};

// One stream from one coordinator. Sends the server's ServerInfo first, then passes each item to `on_item`
// together with the outbox for its answer. Deletes itself in OnDone.
//
// `on_item` is called from gRPC's threads, one call at a time per stream, and must not block.
template <class Request, class Response>
class BatchServerStream final : public grpc::ServerBidiReactor<Request, Response> {
 public:
  using RequestItem = typename Outbox<Request>::Item;
  using ItemFn = std::function<void(RequestItem&&, const std::shared_ptr<Outbox<Response>>&)>;
  using Set = StreamSet<BatchServerStream>;

  BatchServerStream(const v1::ServerInfo& info, ItemFn on_item, Set* set)
      : on_item_(std::move(on_item)),
        set_(set),
        outbox_(std::make_shared<Outbox<Response>>([this](const Response& m) { this->StartWrite(&m); })) {
    Response first;
    *first.mutable_info() = info;
    outbox_->PostFirst(std::move(first));
    this->StartRead(&request_);
    set_->Add(this);
  }

  // Thread-safe until OnDone.
  void End(grpc::Status status) {
    absl::MutexLock lock(&mutex_);
    if (!end_) end_ = std::move(status);
    FinishIfIdle();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return End(grpc::Status::OK);
    for (RequestItem& item : *BatchField(request_)) on_item_(std::move(item), outbox_);
    request_.Clear();
    this->StartRead(&request_);
  }

  void OnWriteDone(bool /*ok*/) override {
    // A failed write means that the client is gone. The pending read then fails too and ends the stream.
    outbox_->OnWritten();
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
    if (finished_ || !outbox_->Close()) return;
    finished_ = true;
    this->Finish(*end_);
  }

  const ItemFn on_item_;
  Set* const set_;
  const std::shared_ptr<Outbox<Response>> outbox_;
  Request request_;
  absl::Mutex mutex_;
  std::optional<grpc::Status> end_ ABSL_GUARDED_BY(mutex_);
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace outrider
