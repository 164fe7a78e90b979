#include "coordinator/vllm/vllm_call.h"

#include <utility>

#include "common/rpc/error.h"
#include "coordinator/api/model_names.h"

namespace outrider {

void VllmCall::Start(Parts parts, vllm::GenerateRequest request, const absl::Status& readable) {
  parts_ = std::move(parts);
  request_ = std::move(request);
  if (!readable.ok()) return Refuse(readable);
  absl::StatusOr<v1::GenerateRequest> translated = ParseVllmRequest(request_, streams_, parts_.defaults);
  if (!translated.ok()) return Refuse(translated.status());
  translated_ = *std::move(translated);
  FindModel();
}

void VllmCall::FindModel() {
  if (request_.model().empty()) return TokenizePrompt();
  StartUnary<v1::DescribeRequest, v1::DescribeResponse>(
      parts_.service, &v1::Inference::StubInterface::async_interface::Describe, {}, {},
      [self = shared_from_this()](const absl::StatusOr<v1::DescribeResponse>& description) {
        absl::Status status = description.status();
        if (status.ok()) {
          const auto names = ModelNames(self->parts_.served_model_names, *description);
          status = CheckModel(self->request_.model(), names);
        }
        if (!status.ok()) return self->Refuse(status);
        self->TokenizePrompt();
      });
}

void VllmCall::TokenizePrompt() {
  if (!NeedsTokens(request_)) return Generate();
  v1::TokenizeRequest tokenize;
  tokenize.set_text(request_.text());
  StartUnary<v1::TokenizeRequest, v1::TokenizeResponse>(
      parts_.service, &v1::Inference::StubInterface::async_interface::Tokenize, std::move(tokenize),
      parts_.metadata, [self = shared_from_this()](const absl::StatusOr<v1::TokenizeResponse>& tokens) {
        if (!tokens.ok()) return self->Refuse(tokens.status());
        SetPromptTokens(tokens->ids(), self->request_, &self->translated_);
        self->Generate();
      });
}

void VllmCall::Generate() {
  answer_.emplace(&request_, translated_);
  for (const auto& [key, value] : parts_.metadata) context_.AddMetadata(key, value);
  context_.set_deadline(parts_.deadline);
  reader_.Start(parts_.service, &context_, &translated_);
}

void VllmCall::Refuse(const absl::Status& status) {
  if (parts_.on_refused) parts_.on_refused(status);
  End({}, WithVllmField(status, request_));
}

void VllmCall::OnChunk(const v1::GenerateResponse& chunk) {
  std::optional<vllm::GenerateResponse> response = answer_->Take(chunk);
  if (!response) return Continue();
  Send(*std::move(response));
}

void VllmCall::OnEnd(const absl::Status& status) {
  if (!reason_.ok()) return End({}, reason_);
  if (aborted_ && answer_ && absl::IsCancelled(status)) return End(answer_->Abort(), absl::OkStatus());
  End({}, WithVllmField(status, request_));
}

void VllmCall::Reader::Start(v1::Inference::Stub* service, grpc::ClientContext* context,
                             const v1::GenerateRequest* request) {
  self_ = call_.shared_from_this();
  service->async()->Generate(context, request, this);
  // The hold keeps gRPC from reporting the end while a chunk is being sent.
  AddHold();
  ReadOn();
  StartCall();
}

void VllmCall::Reader::Stop() {
  call_.Cancel();
  RemoveHold();
}

void VllmCall::Reader::OnReadDone(bool ok) {
  if (!ok) return RemoveHold();
  call_.OnChunk(chunk_);
}

void VllmCall::Reader::OnDone(const grpc::Status& status) {
  // `self` may be the last reference.
  const std::shared_ptr<VllmCall> self = std::move(self_);
  self->OnEnd(FromGrpc(status));
}

}  // namespace outrider
