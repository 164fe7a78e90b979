// The answer to one HTTP request, made by generations.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/gateway/generate_calls.h"
#include "coordinator/gateway/openai_answer.h"
#include "coordinator/gateway/openai_request.h"

namespace outrider {

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

  // Either this: waits for the whole answer, and returns its body in pieces. INVALID_ARGUMENT, reason
  // ANSWER_TOO_LARGE, if it takes too much memory, and RESOURCE_EXHAUSTED, reason ANSWERS_TOO_LARGE, if all
  // of them do.
  asio::awaitable<absl::StatusOr<std::vector<std::string>>> Body();

  // Or this, once: waits until there is something to stream, or an error instead of it.
  asio::awaitable<absl::Status> Begin();
  // And then this, until it gives none: the next events, perhaps empty. The last ones tell of an error, if
  // there was one, and close the stream.
  asio::awaitable<std::optional<std::string>> NextEvents();

 private:
  // Takes so much of what all answers may hold.
  void Hold(size_t bytes);

  const OpenAiRequest request_;
  OpenAiAnswer answer_;
  GenerateCalls calls_;
  std::optional<PromptChunk> first_;  // what Begin waited for
  bool ended_ = false;
  size_t& all_held_;
  size_t held_ = 0;  // of it
};

}  // namespace outrider
