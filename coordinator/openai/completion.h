// The answer to one HTTP request, made by generations.
#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "common/net/asio.h"
#include "common/net/http_parser.h"
#include "coordinator/api/unary_call.h"
#include "coordinator/openai/openai_answer.h"
#include "coordinator/openai/openai_request.h"
#include "outrider/v1/inference.grpc.pb.h"

namespace outrider {

struct PromptChunk {
  size_t prompt;
  const v1::GenerateResponse* chunk;
};

// Makes one call for each prompt, and returns their chunks in the order of arrival. One executor thread.
// Reads a call only when Next is called, so a slow client slows its generations down.
class GenerateCalls {
 public:
  static constexpr size_t kMaxAtOnce = 16;  // the most prompts of a request in progress at once

  // `service`, `request` and `client` must outlive this; `metadata` goes with each call.
  GenerateCalls(const asio::any_io_executor& executor, v1::Inference::Stub* service,
                const OpenAiRequest* request, CallMetadata metadata, HttpClient* client);
  // Cancels what still runs.
  ~GenerateCalls();

  // Waits for the next chunk, which is valid until Next is called again. Returns none at the end: after the
  // last chunk of all calls, an error of any of them, or the client's departure.
  asio::awaitable<std::optional<PromptChunk>> Next();

  // After the end: OK, or the first error.
  const absl::Status& status() const { return status_; }

 private:
  class Call;

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

// One executor thread. Destruction cancels what still runs.
class Completion {
 public:
  // `service` and `client` must outlive this; for `metadata` see GenerateCalls.
  // `held` counts the bytes of all answers that wait to be whole.
  Completion(const asio::any_io_executor& executor, v1::Inference::Stub* service, OpenAiRequest request,
             AnswerHeader header, CallMetadata metadata, HttpClient* client, size_t* held)
      : request_(std::move(request)),
        answer_(&request_, std::move(header)),
        calls_(executor, service, &request_, std::move(metadata), client),
        all_held_(*held) {}
  ~Completion() { Hold(0); }

  const OpenAiRequest& request() const { return request_; }

  // For a whole answer: returns its body in pieces. INVALID_ARGUMENT, reason ANSWER_TOO_LARGE, if it takes
  // too much memory; RESOURCE_EXHAUSTED, reason ANSWERS_TOO_LARGE, if all answers together do.
  asio::awaitable<absl::StatusOr<std::vector<std::string>>> Body();

  // For a stream, once: waits until there is something to send, or an error to answer instead.
  asio::awaitable<absl::Status> Begin();
  // For a stream, after Begin: returns the next events, perhaps empty, or none after the last. The last ones
  // report the error, if there was one, and close the stream.
  asio::awaitable<std::optional<std::string>> NextEvents();

 private:
  // Takes `bytes` of what all answers may hold.
  void Hold(size_t bytes) {
    all_held_ += bytes - held_;
    held_ = bytes;
  }

  const OpenAiRequest request_;
  OpenAiAnswer answer_;
  GenerateCalls calls_;
  std::optional<PromptChunk> first_;  // what Begin waited for
  bool ended_ = false;
  size_t& all_held_;
  size_t held_ = 0;  // this answer's part
};

}  // namespace outrider
