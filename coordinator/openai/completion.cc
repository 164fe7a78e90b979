#include "coordinator/openai/completion.h"

#include <memory>

#include "common/rpc/error.h"

namespace outrider {
namespace {

constexpr size_t kMaxBytes = size_t{64} << 20;
constexpr size_t kMaxBytesOfAll = size_t{256} << 20;

}  // namespace

asio::awaitable<absl::StatusOr<std::vector<std::string>>> Completion::Body() {
  while (const std::optional<PromptChunk> next = co_await calls_.Next()) {
    answer_.Add(next->prompt, *next->chunk);
    Hold(answer_.bytes());
    if (held_ > kMaxBytes) {
      co_return InvalidFor("ANSWER_TOO_LARGE", "the answer has more than ", kMaxBytes >> 20,
                           " MiB; stream it, or ask for fewer prompts, choices or log-probabilities at once");
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
  co_return ServerSentEvent(ToHttpError(calls_.status(), request_.endpoint, request_.grammar_field).body) +
      DoneEvent();
}

// gRPC's threads only post to the executor. Lives until gRPC is done with it, perhaps longer than its owner.
class GenerateCalls::Call final : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  Call(GenerateCalls* owner, size_t prompt) : owner_(owner), prompt_(prompt), work_(owner->executor_) {}

  void Start() {
    request_ = owner_->request_->common;
    request_.MergeFrom(owner_->request_->prompts[prompt_]);
    for (const auto& [key, value] : owner_->metadata_) context_.AddMetadata(key, value);
    owner_->service_->async()->Generate(&context_, &request_, this);
    // The hold keeps gRPC from reporting the end while a chunk waits for Next.
    held_ = true;
    AddHold();
    ReadOn();
    StartCall();
  }

  size_t prompt() const { return prompt_; }
  const v1::GenerateResponse& chunk() const { return chunk_; }

  void ReadOn() {
    reading_ = true;
    StartRead(&chunk_);
  }
  // Ends the call, whose owner hears no more of it.
  void Abandon() {
    owner_ = nullptr;
    context_.TryCancel();
    if (!reading_) Release();
  }

  void OnReadDone(bool ok) override {
    asio::post(work_.get_executor(), [this, ok] {
      reading_ = false;
      if (!ok || owner_ == nullptr) return Release();
      owner_->ready_.push_back(this);
      owner_->changed_.Notify();
    });
  }
  void OnDone(const grpc::Status& status) override {
    asio::post(work_.get_executor(), [this, status] {
      if (owner_ != nullptr) {
        owner_->calls_.erase(this);
        if (!status.ok()) owner_->Fail(FromGrpc(status));
        owner_->changed_.Notify();
      }
      delete this;
    });
  }

 private:
  void Release() {
    if (std::exchange(held_, false)) RemoveHold();
  }

  GenerateCalls* owner_;  // null once abandoned; executor thread
  const size_t prompt_;
  const asio::executor_work_guard<asio::any_io_executor> work_;
  grpc::ClientContext context_;
  v1::GenerateRequest request_;
  v1::GenerateResponse chunk_;
  bool reading_ = false;
  bool held_ = false;
};

GenerateCalls::GenerateCalls(const asio::any_io_executor& executor, v1::Inference::Stub* service,
                             const OpenAiRequest* request, CallMetadata metadata, HttpClient* client)
    : executor_(executor),
      service_(service),
      request_(request),
      metadata_(std::move(metadata)),
      client_(client),
      changed_(executor) {
  const auto on_gone = [this] { Fail(absl::CancelledError("the client has gone away")); };
  if (client_->gone) on_gone();
  client_->on_gone = on_gone;
}

GenerateCalls::~GenerateCalls() {
  client_->on_gone = nullptr;
  Fail(absl::CancelledError("the answer is no longer wanted"));
}

asio::awaitable<std::optional<PromptChunk>> GenerateCalls::Next() {
  if (Call* call = std::exchange(shown_, nullptr)) call->ReadOn();
  while (true) {
    while (status_.ok() && next_prompt_ < request_->prompts.size() && calls_.size() < kMaxAtOnce) {
      Call* const call = *calls_.insert(new Call(this, next_prompt_++)).first;
      call->Start();
    }
    if (!ready_.empty()) {
      shown_ = ready_.front();
      ready_.pop_front();
      co_return PromptChunk{shown_->prompt(), &shown_->chunk()};
    }
    if (calls_.empty()) co_return std::nullopt;
    co_await changed_.Wait();
  }
}

void GenerateCalls::Fail(absl::Status status) {
  if (!status_.ok()) return;
  status_ = std::move(status);
  for (Call* call : std::exchange(calls_, {})) call->Abandon();
  ready_.clear();
  shown_ = nullptr;
  changed_.Notify();
}

}  // namespace outrider
