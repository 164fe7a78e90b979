// The server's end of a stream of batches.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <utility>

#include "common/rpc/outbox.h"
#include "outrider/v1/sequence.pb.h"

namespace outrider {

// One stream from one coordinator. Sends the server's ServerInfo, then hands every item to `on_item` together with the outbox
// for its answer. Deletes itself when gRPC is done with it.
//
// `on_item` is called from gRPC's threads, one call at a time for a stream, and must not block.
template <class Request, class Response>
class BatchServerStream final : public grpc::ServerBidiReactor<Request, Response> {
 public:
  using RequestItem = typename Outbox<Request>::Item;
  using ItemFn = std::function<void(RequestItem&&, const std::shared_ptr<Outbox<Response>>&)>;

  BatchServerStream(const v1::ServerInfo& info, ItemFn on_item)
      : on_item_(std::move(on_item)),
        outbox_(std::make_shared<Outbox<Response>>([this](const Response& m) { this->StartWrite(&m); })) {
    Response first;
    *first.mutable_info() = info;
    outbox_->PostFirst(std::move(first));
    this->StartRead(&request_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return Finish();
    for (RequestItem& item : *BatchField(request_)) on_item_(std::move(item), outbox_);
    request_.Clear();
    this->StartRead(&request_);
  }

  void OnWriteDone(bool /*ok*/) override {
    // A failed write means that the client is gone; the read that fails with it ends the stream.
    outbox_->OnWritten();
    FinishOnce();
  }

  void OnDone() override {
    outbox_->Close();
    delete this;
  }

 private:
  // Finish may be called only once and only with no write in flight.
  void Finish() {
    finishing_.store(true);
    FinishOnce();
  }
  void FinishOnce() {
    if (!finishing_.load() || !outbox_->Close()) return;
    if (!finished_.exchange(true)) grpc::ServerBidiReactor<Request, Response>::Finish(grpc::Status::OK);
  }

  const ItemFn on_item_;
  const std::shared_ptr<Outbox<Response>> outbox_;
  Request request_;
  std::atomic<bool> finishing_ = false;
  std::atomic<bool> finished_ = false;
};

}  // namespace outrider
