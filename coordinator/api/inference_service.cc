#include "coordinator/api/inference_service.h"

#include "coordinator/api/generate_call.h"
#include "coordinator/api/request_context.h"
#include "coordinator/link/asio.h"

namespace outrider {

grpc::ServerWriteReactor<grpc::ByteBuffer>* InferenceService::Generate(grpc::CallbackServerContext* context,
                                                                       const grpc::ByteBuffer* request) {
  const auto left = context->deadline() - std::chrono::system_clock::now();
  const bool has_deadline = context->deadline() != std::chrono::system_clock::time_point::max();
  const Clock::time_point deadline = has_deadline
                                         ? Clock::now() + std::chrono::duration_cast<Clock::duration>(left)
                                         : Clock::time_point::max();
  v1::RequestContext request_context = ReadRequestContext(context->client_metadata());
  context->AddInitialMetadata(kRequestIdKey, request_context.request_id());
  auto call = std::make_shared<GenerateCall>(&parts_, *request, std::move(request_context),
                                             ReadClient(*context, parts_.checks_tokens), deadline);
  call->Start();
  return call->writer();
}

grpc::ServerUnaryReactor* InferenceService::Describe(grpc::CallbackServerContext* context,
                                                     const v1::DescribeRequest* /*request*/,
                                                     v1::DescribeResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  asio::post(parts_.executor, [this, response, reactor] {
    if (parts_.target->up()) *response->mutable_target() = *parts_.target->info();
    const DraftLink* draft = parts_.drafters.draft.get();
    if (draft != nullptr && draft->up()) *response->mutable_draft() = *draft->info();
    response->set_running(static_cast<uint32_t>(parts_.admission->running()));
    v1::SpeculationOptions* defaults = response->mutable_defaults();
    defaults->set_drafter(DefaultDrafter(parts_.defaults));
    if (!parts_.defaults.adaptive) {
      defaults->set_draft_tokens(static_cast<uint32_t>(parts_.defaults.draft_tokens));
    }
    defaults->set_rule(parts_.defaults.rule);
    if (parts_.target->info() != nullptr) {
      response->set_max_draft_tokens(parts_.target->info()->max_draft_tokens());
    }
    response->set_version(OUTRIDER_VERSION);
    response->set_degraded(draft != nullptr && !draft->up());
    response->set_tokenizer_fingerprint(parts_.tokenizer->Fingerprint());
    *response->mutable_totals() = parts_.metrics->Totals();
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

}  // namespace outrider
