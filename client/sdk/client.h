// The C++ SDK: a client of a coordinator.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/rpc/credentials.h"
#include "outrider/v1/inference.grpc.pb.h"

namespace outrider {

struct ClientOptions {
  absl::Duration connect_timeout = absl::Seconds(5);
  absl::Duration describe_timeout = absl::Seconds(5);  // for Tokenize too
  absl::Duration generate_timeout = absl::InfiniteDuration();
  // How long to retry a generation that cannot connect or breaks off; it resumes there. Zero: no retries.
  absl::Duration retry_for = absl::ZeroDuration();
  ChannelSecurity security = {};  // plaintext
};

// A complete continuation.
struct Completion {
  std::string text;
  std::vector<v1::GeneratedToken> tokens;
  v1::Finish finish;
  std::vector<v1::PositionLogprobs> prompt_logprobs = {};  // if the request asks for them
};

// Cancels one call of Generate from elsewhere. Thread-safe; must outlive the call.
class Cancellation {
 public:
  // The call returns CANCELLED, at once if it has not begun.
  void Cancel() {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    if (context_ != nullptr) context_->TryCancel();
  }

 private:
  friend class Client;
  // Returns false if already cancelled. While attached, Cancel reaches the call.
  bool Attach(grpc::ClientContext* context) {
    absl::MutexLock lock(&mutex_);
    if (!cancelled_) context_ = context;
    return !cancelled_;
  }
  // Returns false as soon as cancelled.
  bool Pause(absl::Duration duration) {
    absl::MutexLock lock(&mutex_);
    return !mutex_.AwaitWithTimeout(absl::Condition(&cancelled_), duration);
  }
  void Detach() {
    absl::MutexLock lock(&mutex_);
    context_ = nullptr;
  }

  absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

// A connection to a coordinator. Thread-safe; calls block and may overlap. Errors are the server's, with
// their ErrorInfo (common/rpc/error.h); UNAVAILABLE means that the server was not reached or went away.
class Client {
 public:
  using OnChunk = std::function<void(const v1::GenerateResponse&)>;

  // `address`: HOST:PORT, unix:PATH or another gRPC address, such as dns:NAME. INVALID_ARGUMENT for others.
  // UNAVAILABLE, with the reason, if none answers within connect_timeout. Errors of MakeChannelCredentials.
  static absl::StatusOr<Client> Connect(const std::string& address, const ClientOptions& options = {});

  // Calls `on_chunk` on the caller's thread with each chunk as it comes, the last one included. Returns all
  // chunks joined: a Completion for each of the samples (request.n). `on_chunk` and `cancellation` may be
  // null.
  //
  // With retry_for, an UNAVAILABLE is followed by another call that resumes from the last token, so no token
  // comes twice. Under greedy sampling and the coupled rule the text is the one that an unbroken call gives;
  // otherwise it has the same distribution. Usage counts all tokens; speculation counts only those of the
  // last call. Several samples, or a beam search, are retried only if none of their chunks has come.
  absl::StatusOr<std::vector<Completion>> GenerateSamples(const v1::GenerateRequest& request,
                                                          const OnChunk& on_chunk,
                                                          Cancellation* cancellation = nullptr) const;
  // The same for requests of one sample; INVALID_ARGUMENT for others.
  absl::StatusOr<Completion> Generate(const v1::GenerateRequest& request, const OnChunk& on_chunk,
                                      Cancellation* cancellation = nullptr) const;

  absl::StatusOr<v1::DescribeResponse> Describe() const;
  // Tokenizes a prompt as the target does.
  absl::StatusOr<v1::TokenizeResponse> Tokenize(const v1::TokenizeRequest& request) const;

 private:
  Client(const std::shared_ptr<grpc::Channel>& channel, const ClientOptions& options)
      : options_(options), stub_(v1::Inference::NewStub(channel)) {}

  // Makes one call, and adds its chunks to `completions`.
  absl::Status Attempt(const v1::GenerateRequest& request, const OnChunk& on_chunk,
                       Cancellation* cancellation, absl::Time deadline,
                       std::vector<Completion>& completions) const;

  ClientOptions options_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

}  // namespace outrider
