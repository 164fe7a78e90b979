#include "coordinator/servers/channel.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/rpc/error.h"
#include "common/rpc/server.h"
#include "outrider/v1/draft.grpc.pb.h"
#include "outrider/v1/target.grpc.pb.h"

namespace outrider {
namespace {

// gRPC's names for the parts of a protocol.
template <class Protocol>
struct Rpc;

template <>
struct Rpc<DraftProtocol> {
  using Service = v1::Draft;
  static constexpr auto kPrepare = &Service::Stub::PrepareAsyncPropose;
};

template <>
struct Rpc<TargetProtocol> {
  using Service = v1::Target;
  static constexpr auto kPrepare = &Service::Stub::PrepareAsyncVerify;
};

// Polls for a channel that has no stream, until it is connected or the time is over. gRPC advances an attempt
// to connect only while somebody polls, or by its own timer, every five seconds.
class Connecting {
 public:
  static void Start(std::shared_ptr<grpc::Channel> channel, GrpcContext& context, Clock::duration within) {
    std::shared_ptr<Connecting> connecting(new Connecting(std::move(channel), context, within));
    connecting->until_it_ends_ = connecting;
    connecting->context_.poller().Join();
    connecting->Await();
  }

 private:
  Connecting(std::shared_ptr<grpc::Channel> channel, GrpcContext& context, Clock::duration within)
      : channel_(std::move(channel)), context_(context), end_(Clock::now() + within) {}

  void Await() {
    const grpc_connectivity_state state = channel_->GetState(/*try_to_connect=*/true);
    const Clock::duration left = end_ - Clock::now();
    if (state == GRPC_CHANNEL_READY || left <= Clock::duration::zero()) return End();
    // gRPC takes deadlines on the wall clock, which may be adjusted.
    const auto deadline = std::chrono::system_clock::now() +
                          std::chrono::duration_cast<std::chrono::system_clock::duration>(left);
    channel_->NotifyOnStateChange(state, deadline, &context_.queue(), &changed_);
  }
  void End() {
    QueuePoller& poller = context_.poller();
    until_it_ends_ = nullptr;
    poller.Leave();
  }

  const std::shared_ptr<grpc::Channel> channel_;
  GrpcContext& context_;
  const Clock::time_point end_;
  QueueTag changed_{[this](bool in_time) { in_time ? Await() : End(); }};
  std::shared_ptr<Connecting> until_it_ends_;
};

}  // namespace

// One stream. It lives until it has ended and the channel has released it.
template <class Protocol>
class Channel<Protocol>::Stream {
 public:
  using Request = typename Protocol::Request;
  using Stub = typename Rpc<Protocol>::Service::Stub;

  static std::shared_ptr<Stream> Start(Channel& channel, Handlers handlers) {
    std::shared_ptr<Stream> stream(new Stream(channel, std::move(handlers)));
    stream->until_it_ends_ = stream;
    stream->poller_.Join();
    stream->stream_->StartCall(&stream->started_);
    return stream;
  }

  Outbox<Request>& outbox() { return outbox_; }
  void CloseAfterWrites() {
    if (outbox_.Seal()) OnNoMoreWrites();
  }
  void Cancel() { context_.TryCancel(); }

 private:
  enum class Ending : uint8_t { kNot, kHalfClosing, kHalfClosed, kFinishing };

  Stream(Channel& channel, Handlers handlers)
      : handlers_(std::move(handlers)),
        poller_(channel.context_.poller()),
        stub_(channel.channel_),
        stream_((stub_.*Rpc<Protocol>::kPrepare)(&context_, &channel.context_.queue())),
        outbox_([this](const Request& message) { stream_->Write(message, &written_); }) {}

  // Deferred: gRPC tells the server of each read, which would wake it between its answer and the next item.
  void Read() {
    poller_.BeginLater([this] { stream_->Read(&response_, &read_done_); });
  }
  void OnReadDone(bool ok) {
    if (!ok) {
      const std::shared_ptr<Stream> self = until_it_ends_;
      End();
      // The message may be one that cannot be parsed, while the server goes on. Cancel comes after Finish, or
      // the status would be CANCELLED whatever the server says.
      return Cancel();
    }
    handlers_.on_response(std::move(response_));
    response_.Clear();
    Read();
  }
  // Call once nothing is read any more.
  void End() {
    {
      absl::MutexLock lock(&mutex_);
      reading_ = false;
    }
    if (outbox_.Close()) OnNoMoreWrites();
  }
  // Call while no write is in flight and none will follow. While the server may still answer, this only tells
  // it so, and it ends the stream.
  void OnNoMoreWrites() {
    std::shared_ptr<Stream> self;  // the end may come on another thread before this one has left the lock
    absl::MutexLock lock(&mutex_);
    if (reading_ && ending_ == Ending::kNot) {
      self = until_it_ends_;
      ending_ = Ending::kHalfClosing;
      stream_->WritesDone(&half_closed_);
    } else if (!reading_ && ending_ != Ending::kHalfClosing && ending_ != Ending::kFinishing) {
      self = until_it_ends_;
      ending_ = Ending::kFinishing;
      stream_->Finish(&status_, &finished_);
    }
  }
  void OnHalfClosed() {
    {
      absl::MutexLock lock(&mutex_);
      ending_ = Ending::kHalfClosed;
    }
    OnNoMoreWrites();
  }

  const Handlers handlers_;
  QueuePoller& poller_;
  grpc::ClientContext context_;
  Stub stub_;
  const std::unique_ptr<grpc::ClientAsyncReaderWriter<Request, typename Protocol::Response>> stream_;
  Outbox<Request> outbox_;
  typename Protocol::Response response_;
  grpc::Status status_;
  QueueTag started_{[this](bool ok) { ok ? Read() : End(); }};
  QueueTag read_done_{[this](bool ok) { OnReadDone(ok); }};
  QueueTag written_{[this](bool /*ok*/) {
    if (outbox_.OnWritten()) OnNoMoreWrites();
  }};
  QueueTag half_closed_{[this](bool /*ok*/) { OnHalfClosed(); }};
  QueueTag finished_{[this](bool /*ok*/) {
    handlers_.on_end(FromGrpc(status_));
    QueuePoller& poller = poller_;
    until_it_ends_ = nullptr;
    poller.Leave();
  }};
  std::shared_ptr<Stream> until_it_ends_;
  absl::Mutex mutex_;
  bool reading_ ABSL_GUARDED_BY(mutex_) = true;
  Ending ending_ ABSL_GUARDED_BY(mutex_) = Ending::kNot;
};

template <class Protocol>
Channel<Protocol>::Channel(GrpcContext& context, const std::string& address, const std::string& host,
                           const std::shared_ptr<grpc::ChannelCredentials>& credentials)
    : context_(context), channel_([&] {
        grpc::ChannelArguments arguments = ChannelArguments();
        if (!host.empty()) arguments.SetSslTargetNameOverride(host);
        return grpc::CreateCustomChannel(address, credentials, arguments);
      }()) {}

template <class Protocol>
Channel<Protocol>::~Channel() {
  Cancel();
}

template <class Protocol>
void Channel<Protocol>::Open(Handlers handlers) {
  stream_ = Stream::Start(*this, std::move(handlers));
}

template <class Protocol>
Outbox<typename Protocol::Request>& Channel<Protocol>::outbox() {
  return stream_->outbox();
}

template <class Protocol>
void Channel<Protocol>::CloseAfterWrites() {
  stream_->CloseAfterWrites();
}

template <class Protocol>
void Channel<Protocol>::Cancel() {
  if (stream_ != nullptr) stream_->Cancel();
}

template <class Protocol>
void Channel<Protocol>::ConnectAgain(Clock::duration within) {
  // Otherwise gRPC would retry names that do not resolve at intervals that grow to two minutes.
  grpc::experimental::ChannelResetConnectionBackoff(channel_.get());
  Connecting::Start(channel_, context_, within);
}

template class Channel<DraftProtocol>;
template class Channel<TargetProtocol>;

}  // namespace outrider
