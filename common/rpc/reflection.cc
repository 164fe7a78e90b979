#include "common/rpc/reflection.h"

#include <grpcpp/generic/generic_stub.h>

#include <atomic>

namespace outrider {
namespace {

constexpr char kStable[] = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
constexpr char kAlpha[] = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";

// Relays one stream. Each request gets one answer, so only one message is in flight. Deletes itself.
class Relay final : public grpc::ServerGenericBidiReactor {
 public:
  explicit Relay(std::shared_ptr<grpc::Channel> self) : stub_(std::move(self)), alpha_(this) {
    stub_.PrepareBidiStreamingCall(&alpha_.context, kAlpha, {}, &alpha_);
    // The hold lets reads and writes begin outside alpha_'s own callbacks, until EndRequests.
    alpha_.AddHold();
    alpha_.StartCall();
    StartRead(&request_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return EndRequests();
    alpha_.StartWrite(&request_);
    alpha_.StartRead(&answer_);
  }
  void OnWriteDone(bool ok) override { ok ? StartRead(&request_) : EndRequests(); }
  void OnCancel() override { alpha_.context.TryCancel(); }
  void OnDone() override { Release(); }

 private:
  struct Alpha final : grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
    explicit Alpha(Relay* relay) : relay(relay) {}
    void OnReadDone(bool ok) override { ok ? relay->StartWrite(&relay->answer_) : relay->EndRequests(); }
    void OnDone(const grpc::Status& status) override {
      relay->Finish(status);
      relay->Release();
    }

    Relay* const relay;
    grpc::ClientContext context;
  };

  void EndRequests() {
    if (ended_.exchange(true)) return;
    alpha_.StartWritesDone();
    alpha_.RemoveHold();
  }
  void Release() {
    if (--users_ == 0) delete this;
  }

  grpc::GenericStub stub_;
  grpc::ByteBuffer request_, answer_;
  std::atomic<bool> ended_ = false;
  std::atomic<int> users_ = 2;  // both calls
  Alpha alpha_;
};

}  // namespace

grpc::ServerGenericBidiReactor* StableReflection::CreateReactor(grpc::GenericCallbackServerContext* context) {
  if (context->method() != kStable) return CallbackGenericService::CreateReactor(context);
  return new Relay(self_());
}

}  // namespace outrider
