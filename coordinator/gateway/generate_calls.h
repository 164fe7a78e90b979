// The gRPC calls behind one HTTP request: one for each prompt, their chunks in the order they come.
#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "common/net/event.h"
#include "common/net/http_message.h"
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

// One executor thread. A call is read on only when Next is called, so that a slow client slows its
// generations down: of each prompt in progress, one chunk is held here.
class GenerateCalls {
 public:
  // Prompts of a request that are worked on at once.
  static constexpr size_t kMaxAtOnce = 16;

  // `service`, `request` and `client` must outlive this; `metadata` goes with each call.
  GenerateCalls(const asio::any_io_executor& executor, v1::Inference::Stub* service,
                const OpenAiRequest* request, CallMetadata metadata, HttpClient* client);
  // Cancels what still runs.
  ~GenerateCalls();
  GenerateCalls(const GenerateCalls&) = delete;
  GenerateCalls& operator=(const GenerateCalls&) = delete;

  // Waits for the next chunk, which is valid until Next is called again. None at the end: after the last
  // chunk of all calls, an error of any of them, or the client's going away.
  asio::awaitable<std::optional<PromptChunk>> Next();

  // After the end: OK, or the first error.
  const absl::Status& status() const { return status_; }

 private:
  class Call;

  void StartCalls();
  void OnChunk(Call* call);
  void OnEnd(Call* call, const grpc::Status& status);
  // Ends all calls; the first reason counts.
  void Fail(absl::Status status);

  const asio::any_io_executor executor_;
  v1::Inference::Stub* const service_;
  const OpenAiRequest* const request_;
  const CallMetadata metadata_;
  HttpClient* const client_;
  absl::flat_hash_set<Call*> calls_;  // in progress; they delete themselves
  std::deque<Call*> ready_;           // those whose chunk Next can return
  Call* shown_ = nullptr;             // whose chunk Next returned
  size_t next_prompt_ = 0;
  absl::Status status_;
  SocketEvent changed_;
};

}  // namespace outrider
