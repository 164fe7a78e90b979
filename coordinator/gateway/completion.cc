#include "coordinator/gateway/completion.h"

#include <utility>

#include "coordinator/gateway/openai_error.h"

namespace outrider {

absl::StatusOr<std::string> Completion::Body() {
  while (const std::optional<PromptChunk> next = calls_.Next()) answer_.Add(next->prompt, *next->chunk);
  if (!calls_.status().ok()) return calls_.status();
  return answer_.Body();
}

absl::Status Completion::Begin() {
  first_ = calls_.Next();
  return first_ ? absl::OkStatus() : calls_.status();
}

std::optional<std::string> Completion::NextEvents() {
  if (ended_) return std::nullopt;
  std::optional<PromptChunk> next = std::exchange(first_, std::nullopt);
  if (!next) next = calls_.Next();
  if (next) return answer_.AddAsEvent(next->prompt, *next->chunk);
  ended_ = true;
  if (calls_.status().ok()) return answer_.LastEvents();
  return ServerSentEvent(ToHttpError(calls_.status(), request_.endpoint).body) + DoneEvent();
}

}  // namespace outrider
