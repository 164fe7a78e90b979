#include "coordinator/link/channel.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "absl/synchronization/mutex.h"
#include "common/rpc/outbox.h"
#include "common/rpc/server.h"
#include "outrider/v1/draft.grpc.pb.h"
#include "outrider/v1/target.grpc.pb.h"

namespace outrider {
namespace {

// What gRPC calls the parts of a protocol.
template <class Protocol>
struct Rpc;

template <>
struct Rpc<DraftProtocol> {
  using Service = v1::Draft;
  using Request = v1::ProposeRequest;
  using Reactor = grpc::ClientBidiReactor<Request, v1::ProposeResponse>;
  static void Open(Service::Stub& stub, grpc::ClientContext* context, Reactor* reactor) {
    stub.async()->Propose(context, reactor);
  }
};

template <>
struct Rpc<TargetProtocol> {
  using Service = v1::Target;
  using Request = v1::VerifyRequest;
  using Reactor = grpc::ClientBidiReactor<Request, v1::VerifyResponse>;
  static void Open(Service::Stub& stub, grpc::ClientContext* context, Reactor* reactor) {
    stub.async()->Verify(context, reactor);
  }
};

// One life of the stream. gRPC may be done with it, on its own thread, before Start has returned; so it lives
// until both gRPC and whoever called Start have let go.
template <class Protocol>
class Stream final : public Rpc<Protocol>::Reactor {
 public:
  using Handlers = typename Channel<Protocol>::Handlers;

  static std::shared_ptr<Stream> Start(typename Rpc<Protocol>::Service::Stub& stub, Handlers handlers) {
    std::shared_ptr<Stream> stream(new Stream(std::move(handlers)));
    stream->held_by_grpc_ = stream;
    Rpc<Protocol>::Open(stub, stream->Context().get(), stream.get());
    // Writes come from outside of reactions, so the stream must not end under them.
    stream->AddHold();
    stream->StartRead(&stream->response_);
    stream->StartCall();
    return stream;
  }

  void Hold() { outbox_.Hold(); }
  void Release() { outbox_.Release(); }
  void Post(typename Protocol::Item&& item) { outbox_.Post(std::move(item)); }
  void Cancel() {
    if (const std::shared_ptr<grpc::ClientContext> context = Context()) context->TryCancel();
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      outbox_.Close();
      // It may be a message that cannot be parsed, and the server goes on.
      Cancel();
      this->RemoveHold();
      return;
    }
    handlers_.on_response(std::move(response_));
    response_.Clear();
    this->StartRead(&response_);
  }
  void OnWriteDone(bool /*ok*/) override { outbox_.OnWritten(); }
  void OnDone(const grpc::Status& status) override {
    const std::shared_ptr<Stream> last = std::move(held_by_grpc_);
    // It holds gRPC's channel. Who lets go of that last waits for gRPC's threads, and this is one of them.
    // The Transport still holds it: nobody knows yet that the stream has ended.
    {
      absl::MutexLock lock(&mutex_);
      context_ = nullptr;
    }
    handlers_.on_end(
        absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message()));
  }

 private:
  explicit Stream(Handlers handlers)
      : handlers_(std::move(handlers)),
        outbox_([this](const auto& message) { this->StartWrite(&message); }) {}

  std::shared_ptr<grpc::ClientContext> Context() {
    absl::MutexLock lock(&mutex_);
    return context_;
  }

  std::shared_ptr<Stream> held_by_grpc_;
  absl::Mutex mutex_;
  // Null once the stream has ended.
  std::shared_ptr<grpc::ClientContext> context_ ABSL_GUARDED_BY(mutex_) =
      std::make_shared<grpc::ClientContext>();
  const Handlers handlers_;
  Outbox<typename Rpc<Protocol>::Request> outbox_;
  typename Protocol::Response response_;
};

}  // namespace

template <class Protocol>
struct Channel<Protocol>::Transport {
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<typename Rpc<Protocol>::Service::Stub> stub;
  std::shared_ptr<Stream<Protocol>> stream;
};

template <class Protocol>
Channel<Protocol>::Channel(const std::string& address,
                           const std::shared_ptr<grpc::ChannelCredentials>& credentials)
    : transport_(std::make_unique<Transport>()) {
  transport_->channel = grpc::CreateCustomChannel(address, credentials, ChannelArguments());
  transport_->stub = Rpc<Protocol>::Service::NewStub(transport_->channel);
}

template <class Protocol>
Channel<Protocol>::~Channel() = default;

template <class Protocol>
void Channel<Protocol>::Open(Handlers handlers) {
  transport_->stream = Stream<Protocol>::Start(*transport_->stub, std::move(handlers));
}

template <class Protocol>
void Channel<Protocol>::Hold() {
  if (transport_->stream != nullptr) transport_->stream->Hold();
}

template <class Protocol>
void Channel<Protocol>::Release() {
  if (transport_->stream != nullptr) transport_->stream->Release();
}

template <class Protocol>
void Channel<Protocol>::Post(typename Protocol::Item&& item) {
  if (transport_->stream != nullptr) transport_->stream->Post(std::move(item));
}

template <class Protocol>
void Channel<Protocol>::Cancel() {
  if (transport_->stream != nullptr) transport_->stream->Cancel();
}

template <class Protocol>
void Channel<Protocol>::ResetBackoff() {
  // Names that do not resolve would otherwise be asked for at intervals that grow to two minutes.
  grpc::experimental::ChannelResetConnectionBackoff(transport_->channel.get());
}

template class Channel<DraftProtocol>;
template class Channel<TargetProtocol>;

}  // namespace outrider
