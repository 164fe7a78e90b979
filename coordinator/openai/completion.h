// The answer to one HTTP request, made of one generation or several.
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
  // Cancels the calls in progress.
  ~GenerateCalls();

  // Waits for the next chunk, which is valid until the next call of Next. Returns nullopt at the end: after
  // the last chunk of all calls, after an error of any call, or once the client has gone.
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
  std::deque<Call*> ready_;           // calls whose chunk Next can return
  Call* shown_ = nullptr;             // the call whose chunk Next returned
  size_t next_prompt_ = 0;
  absl::Status status_;
  SocketEvent changed_;
};

// Answers one request, as a whole or as a stream. One executor thread. Destruction cancels calls in progress.
class Completion {
 public:
  // `service` and `client` must outlive this; for `metadata` see GenerateCalls.
  // `held` counts the bytes of all whole answers in memory.
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

  // For a stream, call once: waits for the first chunk, or returns the error to answer with instead.
  asio::awaitable<absl::Status> Begin();
  // For a stream, after Begin: returns the next events, perhaps empty, or nullopt after the last. The last
  // events report the error, if there was one, and close the stream.
  asio::awaitable<std::optional<std::string>> NextEvents();

 private:
  // Sets the bytes that this answer holds to `bytes`.
  void Hold(size_t bytes) {
    all_held_ += bytes - held_;
    held_ = bytes;
  }

  const OpenAiRequest request_;
  OpenAiAnswer answer_;
  GenerateCalls calls_;
  std::optional<PromptChunk> first_;  // the chunk that Begin waited for
  bool ended_ = false;
  size_t& all_held_;
  size_t held_ = 0;  // this answer's part
};

}  // namespace outrider
