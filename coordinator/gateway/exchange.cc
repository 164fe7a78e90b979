#include "coordinator/gateway/exchange.h"

#include <utility>

#include "coordinator/gateway/openai_error.h"

namespace outrider {

absl::StatusOr<std::string> Exchange::Whole() {
  while (const std::optional<Piece> piece = calls_.Next()) answer_.Add(piece->prompt, *piece->chunk);
  if (!calls_.status().ok()) return calls_.status();
  return answer_.Whole();
}

absl::Status Exchange::Begin() {
  first_ = calls_.Next();
  return first_ ? absl::OkStatus() : calls_.status();
}

std::optional<std::string> Exchange::NextEvents() {
  if (ended_) return std::nullopt;
  std::optional<Piece> piece = std::exchange(first_, std::nullopt);
  if (!piece) piece = calls_.Next();
  if (piece) return answer_.AddAsEvent(piece->prompt, *piece->chunk);
  ended_ = true;
  if (calls_.status().ok()) return answer_.LastEvents();
  return ServerSentEvent(ToHttpError(calls_.status(), request_.endpoint).body) + DoneEvent();
}

}  // namespace outrider
