#include "coordinator/gateway/completion.h"

#include <utility>

#include "coordinator/gateway/openai_error.h"

namespace outrider {

asio::awaitable<absl::StatusOr<std::string>> Completion::Body() {
  while (const std::optional<PromptChunk> next = co_await calls_.Next())
    answer_.Add(next->prompt, *next->chunk);
  if (!calls_.status().ok()) co_return calls_.status();
  co_return answer_.Body();
}

asio::awaitable<absl::Status> Completion::Begin() {
  first_ = co_await calls_.Next();
  co_return first_ ? absl::OkStatus() : calls_.status();
}

asio::awaitable<std::optional<std::string>> Completion::NextEvents() {
  if (ended_) co_return std::nullopt;
  std::optional<PromptChunk> next = std::exchange(first_, std::nullopt);
  if (!next) next = co_await calls_.Next();
  if (next) co_return answer_.AddAsEvent(next->prompt, *next->chunk);
  ended_ = true;
  if (calls_.status().ok()) co_return answer_.LastEvents();
  co_return ServerSentEvent(ToHttpError(calls_.status(), request_.endpoint).body) + DoneEvent();
}

}  // namespace outrider
