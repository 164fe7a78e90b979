// The gRPC calls behind one HTTP request: one for each prompt, their chunks in the order they come.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/gateway/openai_request.h"
#include "outrider/v1/inference.grpc.pb.h"

namespace outrider {

// Keys and values, the keys in lower case.
using CallMetadata = std::vector<std::pair<std::string, std::string>>;

// A chunk of the answer to prompt number `prompt`.
struct PromptChunk {
  size_t prompt;
  const v1::GenerateResponse* chunk;
};

// One thread. A call is read on only when Next is called, so that a slow client slows its generations down.
class GenerateCalls {
 public:
  // Prompts of a request that are worked on at once.
  static constexpr size_t kMaxAtOnce = 16;

  // `service` and `request` must outlive this; `metadata` goes with each call. `client_gone` is asked while
  // there is nothing to do, at least ten times a second, and with each chunk.
  GenerateCalls(v1::Inference::Stub* service, const OpenAiRequest* request, CallMetadata metadata,
                std::function<bool()> client_gone);
  // Cancels what still runs.
  ~GenerateCalls();
  GenerateCalls(const GenerateCalls&) = delete;
  GenerateCalls& operator=(const GenerateCalls&) = delete;

  // Waits for the next chunk, which is valid until Next is called again. None at the end, when every call has
  // ended: after the last chunk, an error of any of them, or the client's going away.
  std::optional<PromptChunk> Next();

  // After the end: OK, or the first error.
  const absl::Status& status() const { return status_; }

 private:
  enum class State { kStarting, kReading, kFinishing };
  struct Call {
    size_t prompt;
    State state = State::kStarting;
    grpc::ClientContext context;
    v1::GenerateResponse chunk;
    grpc::Status status;
    std::unique_ptr<grpc::ClientAsyncReader<v1::GenerateResponse>> reader;
  };

  void StartCalls();
  // The next call of which something is known; null after a while in which nothing happened.
  Call* Wait(bool* ok);
  // Takes the call on from what it waited for. True if its next chunk is there.
  bool Advance(Call* call, bool ok);
  // Ends all calls; the first reason counts.
  void Fail(absl::Status status);

  v1::Inference::Stub* const service_;
  const OpenAiRequest* const request_;
  const CallMetadata metadata_;
  const std::function<bool()> client_gone_;
  grpc::CompletionQueue queue_;
  std::vector<std::unique_ptr<Call>> calls_;  // in progress
  Call* shown_ = nullptr;                     // whose chunk Next returned
  size_t next_prompt_ = 0;
  absl::Status status_;
};

}  // namespace outrider
