#include "coordinator/openai/gateway.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/net/http_server.h"
#include "common/obs/log.h"
#include "common/rpc/address.h"
#include "common/rpc/error.h"
#include "common/rpc/fresh_bits.h"
#include "common/text/json.h"
#include "coordinator/admission/parser_threads.h"
#include "coordinator/api/model_names.h"
#include "coordinator/api/request_context.h"
#include "coordinator/api/unary_call.h"
#include "coordinator/openai/completion.h"
#include "coordinator/openai/openai_request.h"
#include "coordinator/openai/origins.h"
#include "coordinator/openai/routes.h"
#include "coordinator/openai/tokenize.h"
#include "coordinator/openai/tool_fields.h"

namespace outrider {
namespace {

using Json = nlohmann::ordered_json;

// A longer body is parsed on another thread, since other connections would wait for it.
constexpr size_t kLongBody = 64 << 10;

HttpResponse JsonResponse(int status, std::string body) {
  return {.status = status,
          .headers = {{"Content-Type", "application/json"}},
          .body = std::move(body),
          .next_piece = nullptr,
          .close = false};
}

HttpResponse ErrorResponse(const absl::Status& status, Endpoint endpoint = Endpoint::kCompletions,
                           const std::string& grammar_field = "") {
  HttpError error = ToHttpError(status, endpoint, grammar_field);
  HttpResponse response = JsonResponse(error.status, std::move(error.body));
  if (error.retry_after_seconds > 0) {
    response.headers.emplace_back("Retry-After", std::to_string(error.retry_after_seconds));
  }
  return response;
}

}  // namespace

// Its private functions are called on the HTTP server's thread.
class Gateway::Server {
 public:
  Server(GatewayOptions options, const std::shared_ptr<grpc::Channel>& channel)
      : options_(std::move(options)), started_(absl::Now()), service_(v1::Inference::NewStub(channel)) {}

  absl::Status Start() {
    std::unique_ptr<TlsFiles> tls;
    if (!options_.cert.empty()) {
      tls = OUTRIDER_TRY(TlsFiles::Open(options_.cert, options_.key, options_.client_ca));
    }
    http_ = OUTRIDER_TRY(HttpServer::Start(
        "--http-listen", options_.listen, std::move(tls), options_.limits,
        {.check =
             [this](const HttpRequest& head) {
               return WithCorsHeaders(options_.allowed_origins, head, Check(head));
             },
         .answer = [this](const HttpRequest& request) { return AnswerShared(request); },
         .refuse = [this](int status, const std::string& message,
                          const std::string& path) { return Refuse(status, message, path); }}));
    return absl::OkStatus();
  }

  const std::string& address() const { return http_->address(); }
  void Finish(absl::Duration patience) { http_->Finish(patience); }

 private:
  // Counts a refusal, and also the end of a request if it was for a generation.
  void Count(int http_status, const absl::Status& status, const Route& route) {
    refusals_.Add(http_status);
    if (options_.on_refused) options_.on_refused(http_status);
    if (route.Generates() && options_.on_request_end) {
      options_.on_request_end(absl::StatusCodeToString(status.code()));
    }
  }

  HttpResponse Refuse(int status, const std::string& message, const std::string& path) {
    const absl::Status invalid = InvalidFor("INVALID_HTTP", message);
    Count(status, invalid, RouteOf(path));
    if (status == 503) {
      return ErrorResponse(WithRetryDelay(
          MakeError(absl::StatusCode::kUnavailable, "TOO_MANY_CONNECTIONS", message), absl::Seconds(1)));
    }
    HttpResponse response = ErrorResponse(invalid);
    response.status = status;
    return response;
  }

  asio::awaitable<HttpResponse> AnswerShared(const HttpRequest& request) {
    HttpResponse response = co_await Answer(request);
    co_return *WithCorsHeaders(options_.allowed_origins, request, std::move(response));
  }

  // The answer if the head of a request is enough for one: a refusal, or the answer to OPTIONS.
  std::optional<HttpResponse> Check(const HttpRequest& head) {
    const Route route = RouteOf(head.path);
    absl::Status status;
    std::optional<HttpResponse> refusal;
    if (options_.local && IsForeign(options_.allowed_origins, head)) {
      status = MakeError(
          absl::StatusCode::kPermissionDenied, "FOREIGN_HOST",
          "this listener is for programs of its own host, and not for pages of others (Host, Origin)");
      refusal = ErrorResponse(status);
      refusal->close = true;
    } else if (route.kind == Route::Kind::kUnknown) {
      status = MakeError(absl::StatusCode::kNotFound, "UNKNOWN_URL",
                         absl::StrCat("nothing answers ", head.method, " ", head.path));
      refusal = ErrorResponse(status);
    } else if (head.method == "OPTIONS") {
      HttpResponse methods;
      methods.status = 204;
      methods.headers.emplace_back("Allow", route.methods());
      return methods;
    } else if (!route.Takes(head.method)) {
      status = InvalidFor("METHOD_NOT_ALLOWED", head.path, " does not answer ", head.method, " but ",
                          route.methods());
      refusal = ErrorResponse(status);
      refusal->status = 405;
      refusal->headers.emplace_back("Allow", route.methods());
    } else if (options_.authorize != nullptr && route.kind != Route::Kind::kHealth) {
      status = options_.authorize(head.Header("Authorization"));
      if (status.ok()) return std::nullopt;
      refusal = ErrorResponse(status);
      refusal->headers.emplace_back("WWW-Authenticate", "Bearer");
      refusal->close = true;
    }
    if (refusal) Count(refusal->status, status, route);
    return refusal;
  }

  asio::awaitable<HttpResponse> Answer(const HttpRequest& request) {
    const Route route = RouteOf(request.path);
    switch (route.kind) {
      case Route::Kind::kMetrics:
        co_return options_.metrics();
      case Route::Kind::kModels:
        co_return co_await ListModels();
      case Route::Kind::kModel:
        co_return co_await ShowModel(route.model);
      case Route::Kind::kCompletions:
        co_return co_await Generate(Endpoint::kCompletions, request);
      case Route::Kind::kChat:
        co_return co_await Generate(Endpoint::kChat, request);
      case Route::Kind::kTokenize:
        co_return co_await Tokenize(request);
      case Route::Kind::kDetokenize:
        co_return co_await Detokenize(request);
      default:  // kHealth
        break;
    }
    // Describe shows that the executor responds, too.
    const bool ready = options_.ready() && (co_await Describe(service_.get())).ok();
    co_return JsonResponse(ready ? 200 : 503,
                           ready ? R"({"status":"serving"})" : R"({"status":"not serving"})");
  }

  std::vector<std::string> NamesOf(const v1::DescribeResponse& description) const {
    return ModelNames(options_.served_model_names, description);
  }

  Json ModelJson(const std::string& name, const v1::ServerInfo& target) const {
    return {{"id", name},
            {"object", "model"},
            {"created", absl::ToUnixSeconds(started_)},
            {"owned_by", "outrider"},
            {"max_model_len", target.max_context()}};
  }

  asio::awaitable<HttpResponse> ListModels() const {
    const absl::StatusOr<v1::DescribeResponse> description = co_await Describe(service_.get());
    if (!description.ok()) co_return ErrorResponse(description.status());
    Json data = Json::array();
    if (description->has_target()) {
      for (const std::string& name : NamesOf(*description)) {
        data.push_back(ModelJson(name, description->target()));
      }
    }
    const Json list = {{"object", "list"}, {"data", std::move(data)}};
    co_return JsonResponse(200, DumpJson(list));
  }

  asio::awaitable<HttpResponse> ShowModel(std::string name) const {
    const absl::StatusOr<v1::DescribeResponse> description = co_await Describe(service_.get());
    absl::Status status = description.status();
    if (status.ok()) status = CheckModel(name, NamesOf(*description));
    if (status.ok() && !description->has_target()) status = NoTarget();
    if (!status.ok()) co_return ErrorResponse(status);
    co_return JsonResponse(200, DumpJson(ModelJson(name, description->target())));
  }

  std::string ClientOf(const HttpRequest& request) const {
    if (options_.authorize != nullptr) return ClientWithToken(request.Header("Authorization"));
    const HttpClient& client = *request.client;
    return client.certificate.empty() ? ClientAtHost(client.address)
                                      : ClientWithCertificate(client.certificate);
  }

  // Returns the result of `parse` for the body. Parses a long body on another thread.
  template <typename Parse>
  asio::awaitable<decltype(std::declval<Parse>()(std::string()))> Parsed(const HttpRequest& request,
                                                                         Parse parse) {
    const std::string& body = request.body;
    if (body.size() <= kLongBody) co_return parse(body);
    const asio::any_io_executor executor = co_await asio::this_coro::executor;
    if (!parsers_) parsers_.emplace(executor, 1);
    const auto parse_body = [&] { return parse(body); };
    std::unique_ptr<Admission::Ticket> ticket;
    co_return co_await parsers_->Run(ClientOf(request), Clock::time_point::max(), ticket, parse_body);
  }

  // Describes the service. NOT_FOUND if it does not serve a model of that name.
  asio::awaitable<absl::StatusOr<v1::DescribeResponse>> DescribeModel(const std::string& name) const {
    absl::StatusOr<v1::DescribeResponse> description = co_await Describe(service_.get());
    if (!description.ok()) co_return description;
    if (absl::Status status = CheckModel(name, NamesOf(*description)); !status.ok()) co_return status;
    co_return description;
  }

  CallMetadata MetadataOf(const HttpRequest& request, const v1::RequestContext& context) const {
    CallMetadata metadata = {{kRequestIdKey, context.request_id()}, {kClientKey, ClientOf(request)}};
    if (!context.traceparent().empty()) metadata.emplace_back(kTraceparentKey, context.traceparent());
    return metadata;
  }

  static v1::RequestContext ContextOf(const HttpRequest& request) {
    const std::string id(request.Header(kRequestIdKey)), parent(request.Header(kTraceparentKey));
    return ReadRequestContext({{kRequestIdKey, id}, {kTraceparentKey, parent}});
  }

  HttpResponse Refused(const HttpRequest& request, const v1::RequestContext& context,
                       const absl::Status& status) {
    const Route route = RouteOf(request.path);
    HttpResponse response =
        ErrorResponse(status, route.kind == Route::Kind::kChat ? Endpoint::kChat : Endpoint::kCompletions);
    Count(response.status, status, route);
    LogDebug("http request refused",
             {{"request_id", context.request_id()}, {"code", absl::StatusCodeToString(status.code())}});
    return response;
  }

  // Answers a POST with one unary call of the service. parse(body) returns the call's `request` and the name
  // of a `model`; body(parsed, response, description) returns the answer's body.
  template <typename Request, typename Response, typename Parse, typename Body>
  asio::awaitable<HttpResponse> AnswerOneCall(const HttpRequest& request,
                                              UnaryMethod<Request, Response> method, Parse parse, Body body) {
    const v1::RequestContext context = ContextOf(request);
    const auto parsed = co_await Parsed(request, parse);
    absl::Status status = parsed.status();
    HttpResponse response;
    if (status.ok()) {
      const absl::StatusOr<v1::DescribeResponse> description = co_await DescribeModel(parsed->model);
      status = description.status();
      if (status.ok()) {
        const absl::StatusOr<Response> answer = co_await CallUnary<Request, Response>(
            service_.get(), method, parsed->request, MetadataOf(request, context));
        status = answer.status();
        if (status.ok()) response = JsonResponse(200, body(*parsed, *answer, *description));
      }
    }
    if (!status.ok()) response = Refused(request, context, status);
    response.headers.emplace_back(kRequestIdKey, context.request_id());
    co_return response;
  }

  asio::awaitable<HttpResponse> Tokenize(const HttpRequest& request) {
    return AnswerOneCall<v1::TokenizeRequest, v1::TokenizeResponse>(
        request, &v1::Inference::StubInterface::async_interface::Tokenize, ParseTokenizeFields,
        [](const TokenizeFields& fields, const v1::TokenizeResponse& response,
           const v1::DescribeResponse& description) {
          return TokenizeBody(fields, response, description.target().max_context());
        });
  }

  asio::awaitable<HttpResponse> Detokenize(const HttpRequest& request) {
    return AnswerOneCall<v1::DetokenizeRequest, v1::DetokenizeResponse>(
        request, &v1::Inference::StubInterface::async_interface::Detokenize, ParseDetokenizeFields,
        [](const DetokenizeFields&, const v1::DetokenizeResponse& response, const v1::DescribeResponse&) {
          return DetokenizeBody(response);
        });
  }

  // Constrains the request's answer to calls in the model's format, as far as its tools ask for it.
  static absl::Status ConstrainToTools(v1::ToolFormat format, OpenAiRequest* request) {
    const bool is_held =
        OUTRIDER_TRY(outrider::ConstrainToTools(request->tools, format, request->common.mutable_sampling()));
    if (is_held) request->grammar_field = "tools";
    return absl::OkStatus();
  }

  asio::awaitable<HttpResponse> Generate(Endpoint endpoint, const HttpRequest& request) {
    const v1::RequestContext context = ContextOf(request);
    absl::StatusOr<OpenAiRequest> parsed = co_await Parsed(
        request, [endpoint](const std::string& body) { return ParseOpenAiRequest(endpoint, body); });
    absl::Status status = parsed.status();
    AnswerHeader header;
    if (status.ok()) {
      const absl::StatusOr<v1::DescribeResponse> description = co_await DescribeModel(parsed->model);
      status = description.status();
      if (status.ok()) status = ConstrainToTools(description->tool_format(), &*parsed);
      if (status.ok()) {
        const std::vector<std::string> names = NamesOf(*description);
        const char* const prefix = endpoint == Endpoint::kChat ? "chatcmpl" : "cmpl";
        header = {.id = absl::StrFormat("%s-%016x%016x", prefix, FreshBits(), FreshBits()),
                  .created = absl::ToUnixSeconds(absl::Now()),
                  .model = names.empty() ? parsed->model : names.front(),
                  .tool_format = description->tool_format()};
      }
    }
    HttpResponse response;
    if (status.ok()) {
      const asio::any_io_executor executor = co_await asio::this_coro::executor;
      response = co_await Complete(
          std::make_shared<Completion>(executor, service_.get(), *std::move(parsed), std::move(header),
                                       MetadataOf(request, context), request.client, &held_));
    } else {
      response = Refused(request, context, status);
    }
    response.headers.emplace_back(kRequestIdKey, context.request_id());
    co_return response;
  }

  static asio::awaitable<std::optional<std::string>> NextOf(std::vector<std::string>& pieces, size_t& next) {
    if (next == pieces.size()) co_return std::nullopt;
    co_return std::move(pieces[next++]);
  }

  static asio::awaitable<HttpResponse> Complete(std::shared_ptr<Completion> completion) {
    const OpenAiRequest& request = completion->request();
    const auto refused = [&request](const absl::Status& status) {
      return ErrorResponse(status, request.endpoint, request.grammar_field);
    };
    if (!request.stream) {
      absl::StatusOr<std::vector<std::string>> body = co_await completion->Body();
      if (!body.ok()) co_return refused(body.status());
      HttpResponse response = JsonResponse(200, "");
      response.length = 0;
      for (const std::string& piece : *body) *response.length += piece.size();
      // The completion stays alive, since it counts the bytes that are still to be sent.
      response.next_piece = [completion = std::move(completion), pieces = *std::move(body),
                             next = size_t{0}]() mutable { return NextOf(pieces, next); };
      co_return response;
    }
    // The first chunk shows whether there is an answer at all, which decides the HTTP status.
    const absl::Status status = co_await completion->Begin();
    if (!status.ok()) co_return refused(status);
    HttpResponse response;
    response.headers = {{"Content-Type", "text/event-stream"}, {"Cache-Control", "no-cache"}};
    response.next_piece = [completion = std::move(completion)] { return completion->NextEvents(); };
    co_return response;
  }

  const GatewayOptions options_;
  const absl::Time started_;
  const std::unique_ptr<v1::Inference::Stub> service_;
  RefusalLog refusals_;
  std::optional<ParserThreads> parsers_;
  size_t held_ = 0;                   // bytes of all whole answers in memory
  std::unique_ptr<HttpServer> http_;  // destroyed first: its handlers use the members above
};

Gateway::Gateway(std::unique_ptr<Server> server) : server_(std::move(server)) {}
Gateway::~Gateway() = default;

const std::string& Gateway::address() const { return server_->address(); }
void Gateway::Finish(absl::Duration patience) { server_->Finish(patience); }

absl::StatusOr<std::unique_ptr<Gateway>> Gateway::Start(GatewayOptions options,
                                                        const std::shared_ptr<grpc::Channel>& channel) {
  auto server = std::make_unique<Server>(std::move(options), channel);
  OUTRIDER_TRY(server->Start());
  return std::unique_ptr<Gateway>(new Gateway(std::move(server)));
}

}  // namespace outrider
