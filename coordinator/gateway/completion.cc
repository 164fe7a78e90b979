#include "coordinator/gateway/completion.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rpc/error.h"
#include "coordinator/gateway/openai_error.h"

namespace outrider {
namespace {

constexpr size_t kMaxBytes = size_t{64} << 20;
constexpr size_t kMaxBytesOfAll = size_t{256} << 20;

}  // namespace

void Completion::Hold(size_t bytes) {
  all_held_ += bytes - held_;
  held_ = bytes;
}

asio::awaitable<absl::StatusOr<std::vector<std::string>>> Completion::Body() {
  while (const std::optional<PromptChunk> next = co_await calls_.Next()) {
    answer_.Add(next->prompt, *next->chunk);
    Hold(answer_.bytes());
    if (held_ > kMaxBytes) {
      co_return MakeError(
          absl::StatusCode::kInvalidArgument, "ANSWER_TOO_LARGE",
          absl::StrCat("the answer has more than ", kMaxBytes >> 20,
                       " MiB; stream it, or ask for fewer prompts, choices or log-probabilities at once"));
    }
    if (all_held_ > kMaxBytesOfAll) {
      co_return BusyError("ANSWERS_TOO_LARGE", "the answers in progress take too much memory; stream them",
                          absl::Seconds(1));
    }
  }
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
