#include "coordinator/gateway/generate_calls.h"

#include <utility>

#include "common/rpc/error.h"

namespace outrider {

// gRPC's threads only post to the executor. Lives until gRPC has done with it, longer than its owner perhaps.
class GenerateCalls::Call final : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  Call(GenerateCalls* owner, size_t prompt) : owner_(owner), prompt_(prompt), work_(owner->executor_) {}

  void Start() {
    request_ = owner_->request_->common;
    request_.MergeFrom(owner_->request_->prompts[prompt_]);
    for (const auto& [key, value] : owner_->metadata_) context_.AddMetadata(key, value);
    owner_->service_->async()->Generate(&context_, &request_, this);
    // The end is not told of while a chunk waits to be shown.
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
  // Ends the call, of which its owner hears no more.
  void Abandon() {
    owner_ = nullptr;
    context_.TryCancel();
    if (!reading_) Release();
  }

  void OnReadDone(bool ok) override {
    asio::post(work_.get_executor(), [this, ok] {
      reading_ = false;
      if (ok && owner_ != nullptr) return owner_->OnChunk(this);
      Release();
    });
  }
  void OnDone(const grpc::Status& status) override {
    asio::post(work_.get_executor(), [this, status] {
      if (owner_ != nullptr) owner_->OnEnd(this, status);
      delete this;
    });
  }

 private:
  void Release() {
    if (std::exchange(held_, false)) RemoveHold();
  }

  GenerateCalls* owner_;  // null: it wants no more; the executor's thread
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
    StartCalls();
    if (!ready_.empty()) {
      shown_ = ready_.front();
      ready_.pop_front();
      co_return PromptChunk{shown_->prompt(), &shown_->chunk()};
    }
    if (calls_.empty()) co_return std::nullopt;
    co_await changed_.Wait();
  }
}

void GenerateCalls::StartCalls() {
  while (status_.ok() && next_prompt_ < request_->prompts.size() && calls_.size() < kMaxAtOnce) {
    Call* const call = *calls_.insert(new Call(this, next_prompt_++)).first;
    call->Start();
  }
}

void GenerateCalls::OnChunk(Call* call) {
  ready_.push_back(call);
  changed_.Notify();
}

void GenerateCalls::OnEnd(Call* call, const grpc::Status& status) {
  calls_.erase(call);
  if (!status.ok()) Fail(FromGrpc(status));
  changed_.Notify();
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
