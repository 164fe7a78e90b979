// A call of vLLM's protocol, translated into one of Outrider's.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/api/unary_call.h"
#include "coordinator/vllm/vllm_answer.h"
#include "coordinator/vllm/vllm_request.h"
#include "outrider/v1/inference.grpc.pb.h"
#include "vllm/inference.pb.h"

namespace outrider {

// Translates one request, calls Outrider's service with it, and translates the answer. Reads a chunk only
// once the one before has been sent, so a slow client slows its generation down. gRPC's threads call it, one
// at a time. Any thread may call Cancel and Abort at any time.
class VllmCall : public std::enable_shared_from_this<VllmCall> {
 public:
  struct Parts {
    v1::Inference::Stub* service = nullptr;  // outlives the call
    VllmDefaults defaults;
    std::vector<std::string> served_model_names;
    CallMetadata metadata;  // for Tokenize and Generate of `service`
    gpr_timespec deadline;
    std::function<void(const absl::Status&)> on_refused;  // called if the call ends before Generate
    std::function<void()> on_done;                        // gRPC is done with the client's call
  };
  virtual ~VllmCall() = default;

  // Call once. `readable` is OK if the client's bytes could be parsed into `request`.
  void Start(Parts parts, vllm::GenerateRequest request, const absl::Status& readable);
  // Cancels the call. The client no longer wants the answer.
  void Cancel() { context_.TryCancel(); }
  // Ends the answer where it is, with reason ABORTED.
  void Abort() {
    aborted_ = true;
    context_.TryCancel();
  }

 protected:
  explicit VllmCall(bool streams) : streams_(streams) {}

  // Takes the next part of the answer, and calls Continue once it wants another.
  virtual void Send(vllm::GenerateResponse response) = 0;
  // Takes the last parts, if any, and the end. Called once, after which there is no Send.
  virtual void End(std::vector<vllm::GenerateResponse> last, const absl::Status& status) = 0;

  void Continue() { reader_.ReadOn(); }
  // Instead of Continue: ends the call with an error.
  void Stop(absl::Status reason) {
    reason_ = std::move(reason);
    reader_.Stop();
  }
  // Call last: on_done may hold the last reference.
  void Release() {
    const auto on_done = std::move(parts_.on_done);
    on_done();
  }

 private:
  // Reads the answer of Outrider's service. Keeps the VllmCall alive until gRPC is done with it.
  class Reader final : public grpc::ClientReadReactor<v1::GenerateResponse> {
   public:
    explicit Reader(VllmCall* call) : call_(*call) {}

    void Start(v1::Inference::Stub* service, grpc::ClientContext* context,
               const v1::GenerateRequest* request);
    void ReadOn() { StartRead(&chunk_); }
    void Stop();

    void OnReadDone(bool ok) override;
    void OnDone(const grpc::Status& status) override;

   private:
    VllmCall& call_;
    std::shared_ptr<VllmCall> self_;
    v1::GenerateResponse chunk_;
  };

  // The steps: each starts the next, or ends the call.
  void FindModel();
  void TokenizePrompt();
  void Generate();
  void Refuse(const absl::Status& status);
  void OnChunk(const v1::GenerateResponse& chunk);
  void OnEnd(const absl::Status& status);

  const bool streams_;
  Parts parts_;
  vllm::GenerateRequest request_;
  v1::GenerateRequest translated_;
  std::optional<VllmAnswer> answer_;
  absl::Status reason_;  // given to Stop
  grpc::ClientContext context_;
  std::atomic<bool> aborted_ = false;
  Reader reader_{this};
};

}  // namespace outrider
