// The answer to one HTTP request, made by generations.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/gateway/generate_calls.h"
#include "coordinator/gateway/openai_answer.h"
#include "coordinator/gateway/openai_request.h"

namespace outrider {

// One thread at a time. Destruction cancels what still runs.
class Completion {
 public:
  // `service` must outlive this; for `metadata` and `client_gone` see GenerateCalls.
  Completion(v1::Inference::Stub* service, OpenAiRequest request, AnswerHeader header, CallMetadata metadata,
             std::function<bool()> client_gone)
      : request_(std::move(request)),
        answer_(&request_, std::move(header)),
        calls_(service, &request_, std::move(metadata), std::move(client_gone)) {}

  const OpenAiRequest& request() const { return request_; }

  // Either this: waits for the whole answer and returns its body.
  absl::StatusOr<std::string> Body();

  // Or this, once: waits until there is something to stream, or an error instead of it.
  absl::Status Begin();
  // And then this, until it gives none: the next events, perhaps empty. The last ones tell of an error, if
  // there was one, and close the stream.
  std::optional<std::string> NextEvents();

 private:
  const OpenAiRequest request_;
  OpenAiAnswer answer_;
  GenerateCalls calls_;
  std::optional<PromptChunk> first_;  // what Begin waited for
  bool ended_ = false;
};

}  // namespace outrider
