#include "coordinator/api/inference_service.h"

#include <grpc/support/time.h>

#include <chrono>

#include "common/net/asio.h"
#include "common/obs/version.h"
#include "common/rpc/error.h"
#include "common/rpc/parse_message.h"
#include "coordinator/api/generate_call.h"
#include "coordinator/api/parse_request.h"
#include "coordinator/api/request_context.h"

namespace outrider {
namespace {

// A deadline beyond the range of a nanosecond clock is none.
Clock::time_point DeadlineOf(gpr_timespec deadline) {
  const gpr_timespec left =
      gpr_time_sub(gpr_convert_clock_type(deadline, GPR_CLOCK_MONOTONIC), gpr_now(GPR_CLOCK_MONOTONIC));
  constexpr int64_t kFar = int64_t{100} * 365 * 24 * 3600;
  if (left.tv_sec > kFar) return Clock::time_point::max();
  return Clock::now() + std::chrono::seconds(left.tv_sec) + std::chrono::nanoseconds(left.tv_nsec);
}

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* InferenceService::Generate(grpc::CallbackServerContext* context,
                                                                       const grpc::ByteBuffer* request) {
  v1::RequestContext request_context = ReadRequestContext(context->client_metadata());
  context->AddInitialMetadata(kRequestIdKey, request_context.request_id());
  ++unfinished_;
  std::shared_ptr<GenerateCall> call(
      new GenerateCall(&parts_, context, *request, std::move(request_context),
                       ReadClient(*context, parts_.checks_tokens), DeadlineOf(context->raw_deadline())),
      [this](GenerateCall* ended) {
        delete ended;
        --unfinished_;
      });
  call->Start();
  return call->writer();
}

grpc::ServerUnaryReactor* InferenceService::Describe(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request,
                                                     grpc::ByteBuffer* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  v1::DescribeRequest unused;
  if (absl::Status status = ParseMessage(*request, &unused); !status.ok()) {
    reactor->Finish(ToGrpc(status));
    return reactor;
  }
  asio::post(parts_.decode.executor, [this, response, reactor] {
    *response = SerializeMessage(Description());
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

v1::DescribeResponse InferenceService::Description() const {
  v1::DescribeResponse description;
  const auto* target = parts_.decode.targets->info_of_any_up();
  if (target != nullptr) *description.mutable_target() = *target;
  parts_.decode.targets->Describe(description.mutable_servers());
  const DraftPool* drafts = parts_.decode.drafters.drafts;
  const auto* draft = drafts == nullptr ? nullptr : drafts->info_of_any_up();
  if (draft != nullptr) *description.mutable_draft() = *draft;
  if (drafts != nullptr) drafts->Describe(description.mutable_servers());
  description.set_running(static_cast<uint32_t>(parts_.admission->running()));
  v1::SpeculationOptions* defaults = description.mutable_defaults();
  defaults->set_drafter(DefaultDrafter(parts_.defaults));
  if (!parts_.defaults.adaptive) {
    defaults->set_draft_tokens(static_cast<uint32_t>(parts_.defaults.draft_tokens));
  }
  defaults->set_rule(parts_.defaults.rule);
  defaults->set_schedule(parts_.defaults.schedule);
  defaults->set_tree(parts_.defaults.tree);
  if (parts_.decode.targets->info() != nullptr) {
    description.set_max_draft_tokens(parts_.decode.targets->info()->max_draft_tokens());
  }
  description.set_mixed_numerics(parts_.mixed_numerics);
  description.set_version(kVersion);
  description.set_degraded(drafts != nullptr && draft == nullptr);
  description.set_tokenizer_fingerprint(parts_.decode.tokenizer->Fingerprint());
  *description.mutable_totals() = parts_.decode.metrics->Totals();
  return description;
}

}  // namespace outrider
