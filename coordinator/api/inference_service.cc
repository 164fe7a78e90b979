#include "coordinator/api/inference_service.h"

#include <limits>
#include <memory>
#include <string>

#include "common/obs/version.h"
#include "common/rpc/convert.h"
#include "common/rpc/error.h"
#include "coordinator/api/request_context.h"
#include "coordinator/api/tools.h"

namespace outrider {
namespace {

constexpr uint32_t kMaxVocabulary = std::numeric_limits<int32_t>::max();

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* InferenceService::Generate(grpc::CallbackServerContext* context,
                                                                       const grpc::ByteBuffer* request) {
  v1::RequestContext request_context = ReadRequestContext(context->client_metadata());
  context->AddInitialMetadata(kRequestIdKey, request_context.request_id());
  Span span = StartSpan(parts_.decode.tracer, Span::Kind::kServer, "generate", request_context.traceparent());
  if (span.records()) request_context.set_traceparent(span.traceparent());
  ++unfinished_;
  std::shared_ptr<GenerateCall> call(
      new GenerateCall(&parts_, context, *request, std::move(request_context), std::move(span),
                       ReadClient(*context, parts_.checks_tokens)),
      [this](GenerateCall* ended) {
        delete ended;
        --unfinished_;
      });
  call->Start();
  return call->writer();
}

template <typename Request, typename Answer>
grpc::ServerUnaryReactor* InferenceService::AnswerWith(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer& request,
                                                       grpc::ByteBuffer* response, Answer answer) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  const auto proto = std::make_shared<Request>();
  if (absl::Status status = ParseMessage(request, proto.get(), kMaxRequestObjects); !status.ok()) {
    reactor->Finish(ToGrpc(status));
    return reactor;
  }
  const auto finish = [response, reactor](const auto& made) {
    if (made.ok()) *response = SerializeMessage(*made);
    reactor->Finish(ToGrpc(made.status()));
  };
  const auto run = [this, proto, answer, finish, reactor,
                    client = ReadClient(*context, parts_.checks_tokens)]() -> asio::awaitable<void> {
    absl::Status failure;
    try {
      // Reads the size now, on the executor: by the time the answer is made the target may have changed.
      const v1::ServerInfo* const target = parts_.decode.targets->info();
      const uint32_t vocab_size = target != nullptr ? target->vocab_size() : kMaxVocabulary;
      const auto make = [&] { return answer(*proto, vocab_size); };
      if (proto->ByteSizeLong() <= kMaxParsedHere) co_return finish(make());
      std::unique_ptr<Admission::Ticket> ticket;
      co_return finish(co_await parts_.parsers->Run(client, Clock::time_point::max(), ticket, make));
    } catch (...) {
      failure = Failure(std::current_exception());
    }
    reactor->Finish(ToGrpc(failure));
  };
  asio::co_spawn(parts_.decode.executor, run, asio::detached);
  return reactor;
}

grpc::ServerUnaryReactor* InferenceService::Describe(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request,
                                                     grpc::ByteBuffer* response) {
  return AnswerWith<v1::DescribeRequest>(context, *request, response,
                                         [this](const v1::DescribeRequest&, uint32_t) {
                                           return absl::StatusOr<v1::DescribeResponse>(Description());
                                         });
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request,
                                                     grpc::ByteBuffer* response) {
  return AnswerWith<v1::TokenizeRequest>(context, *request, response,
                                         [this](const v1::TokenizeRequest& proto, uint32_t vocab_size) {
                                           return TokenizePrompt(proto, vocab_size);
                                         });
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request,
                                                       grpc::ByteBuffer* response) {
  return AnswerWith<v1::DetokenizeRequest>(context, *request, response,
                                           [this](const v1::DetokenizeRequest& proto, uint32_t vocab_size) {
                                             return DetokenizeIds(proto, vocab_size);
                                           });
}

absl::StatusOr<v1::TokenizeResponse> InferenceService::TokenizePrompt(const v1::TokenizeRequest& request,
                                                                      uint32_t vocab_size) const {
  const Tokenizer& tokenizer = *parts_.decode.tokenizer;
  const auto tokens = OUTRIDER_TRY(ParseTokenize(request, parts_.defaults, tokenizer, vocab_size));
  v1::TokenizeResponse response;
  for (const TokenId token : tokens) {
    response.add_ids(static_cast<uint32_t>(token));
    if (request.with_texts()) response.add_texts(tokenizer.TokenText(token));
  }
  return response;
}

absl::StatusOr<v1::DetokenizeResponse> InferenceService::DetokenizeIds(const v1::DetokenizeRequest& request,
                                                                       uint32_t vocab_size) const {
  OUTRIDER_TRY(CheckTokenIds(request.ids(), vocab_size, "tokens"));
  v1::DetokenizeResponse response;
  response.set_text(parts_.decode.tokenizer->Decode(ToTokens(request.ids()), /*skip_special_tokens=*/false));
  return response;
}

v1::DescribeResponse InferenceService::Description() const {
  v1::DescribeResponse description;
  const auto* target = parts_.decode.targets->info_of_any_up();
  if (target != nullptr) *description.mutable_target() = *target;
  parts_.decode.targets->Describe(description.mutable_servers());
  const DraftPool* drafts = parts_.decode.drafts;
  const auto* draft = drafts == nullptr ? nullptr : drafts->info_of_any_up();
  if (draft != nullptr) *description.mutable_draft() = *draft;
  for (const DraftPool* pool : {parts_.decode.drafts, parts_.decode.second_drafts}) {
    if (pool != nullptr) pool->Describe(description.mutable_servers());
  }
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
  description.set_tool_format(ToolFormatOf(parts_.defaults.chat_template.get()));
  description.set_version(kVersion);
  description.set_degraded(drafts != nullptr && draft == nullptr);
  description.set_tokenizer_fingerprint(parts_.decode.tokenizer->Fingerprint());
  *description.mutable_totals() = parts_.decode.metrics->Totals();
  return description;
}

}  // namespace outrider
