#include "coordinator/gateway/generate_calls.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/rpc/error.h"

namespace outrider {
namespace {

constexpr std::chrono::milliseconds kLongestWait{100};

}  // namespace

GenerateCalls::GenerateCalls(v1::Inference::Stub* service, const OpenAiRequest* request,
                             CallMetadata metadata, std::function<bool()> client_gone)
    : service_(service),
      request_(request),
      metadata_(std::move(metadata)),
      client_gone_(std::move(client_gone)) {}

GenerateCalls::~GenerateCalls() {
  Fail(absl::CancelledError("the answer is no longer wanted"));
  while (Next()) {
  }
  queue_.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
  }
}

std::optional<PromptChunk> GenerateCalls::Next() {
  if (Call* call = std::exchange(shown_, nullptr)) call->reader->Read(&call->chunk, call);
  while (true) {
    StartCalls();
    if (calls_.empty()) return std::nullopt;
    bool ok = false;
    Call* const call = Wait(&ok);
    if (status_.ok() && client_gone_()) Fail(absl::CancelledError("the client has gone away"));
    if (call == nullptr || !Advance(call, ok)) continue;
    if (status_.ok()) {
      shown_ = call;
      return PromptChunk{call->prompt, &call->chunk};
    }
    call->reader->Read(&call->chunk, call);
  }
}

void GenerateCalls::StartCalls() {
  while (status_.ok() && next_prompt_ < request_->prompts.size() && calls_.size() < kMaxAtOnce) {
    v1::GenerateRequest request = request_->common;
    request.MergeFrom(request_->prompts[next_prompt_]);
    Call* const call = calls_.emplace_back(std::make_unique<Call>()).get();
    call->prompt = next_prompt_++;
    for (const auto& [key, value] : metadata_) call->context.AddMetadata(key, value);
    call->reader = service_->AsyncGenerate(&call->context, request, &queue_, call);
  }
}

GenerateCalls::Call* GenerateCalls::Wait(bool* ok) {
  void* tag = nullptr;
  const auto end = std::chrono::system_clock::now() + kLongestWait;
  return queue_.AsyncNext(&tag, ok, end) == grpc::CompletionQueue::GOT_EVENT ? static_cast<Call*>(tag)
                                                                             : nullptr;
}

bool GenerateCalls::Advance(Call* call, bool ok) {
  switch (call->state) {
    case State::kStarting:
      // Reading tells whether the call has begun.
      call->state = State::kReading;
      call->reader->Read(&call->chunk, call);
      return false;
    case State::kReading:
      if (ok) return true;
      call->state = State::kFinishing;
      call->reader->Finish(&call->status, call);
      return false;
    case State::kFinishing:
      if (!call->status.ok()) Fail(FromGrpc(call->status));
      calls_.erase(std::find_if(calls_.begin(), calls_.end(),
                                [call](const std::unique_ptr<Call>& each) { return each.get() == call; }));
      return false;
  }
  return false;
}

void GenerateCalls::Fail(absl::Status status) {
  if (!status_.ok()) return;
  status_ = std::move(status);
  for (const std::unique_ptr<Call>& call : calls_) call->context.TryCancel();
}

}  // namespace outrider
