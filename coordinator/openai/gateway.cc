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
#include "coordinator/admission/admission.h"
#include "coordinator/api/request_context.h"
#include "coordinator/openai/completion.h"
#include "coordinator/openai/openai_request.h"
#include "coordinator/openai/routes.h"

namespace outrider {
namespace {

using Json = nlohmann::ordered_json;

// A longer body is parsed on a thread of its own, since other connections would wait for it.
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
        {.check = [this](const HttpRequest& head) { return Shared(head, Check(head)); },
         .answer = [this](const HttpRequest& request) { return AnswerShared(request); },
         .refuse = [this](int status, const std::string& message,
                          const std::string& path) { return Refuse(status, message, path); }}));
    return absl::OkStatus();
  }

  const std::string& address() const { return http_->address(); }
  void Finish(absl::Duration patience) { http_->Finish(patience); }

 private:
  // Every refusal is counted, and as the end of a request too if it was one for a generation.
  void Count(int http_status, const absl::Status& status, const Route& route) {
    refusals_.Add(http_status);
    if (options_.on_refused) options_.on_refused(http_status);
    if (route.Posts() && options_.on_request_end) {
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

  bool IsAllowed(absl::string_view origin) const {
    const auto is_allowed = [&](const std::string& each) { return each == "*" || each == origin; };
    return !origin.empty() && std::ranges::any_of(options_.allowed_origins, is_allowed);
  }

  // Whether it comes from a page of another host, or was asked for by another's name.
  bool IsForeign(const HttpRequest& head) const {
    absl::string_view origin = head.Header("Origin");
    if (IsAllowed(origin)) origin = {};
    const size_t scheme = origin.find("://");
    origin = scheme == absl::string_view::npos ? absl::string_view() : origin.substr(scheme + 3);
    return IsPublicName(head.Header("Host")) || IsPublicName(origin);
  }

  // Lets the asking page see the answer, if there is one (the Fetch standard's CORS protocol).
  std::optional<HttpResponse> Shared(const HttpRequest& head, std::optional<HttpResponse> response) const {
    const absl::string_view origin = head.Header("Origin");
    if (!response || !IsAllowed(origin)) return response;
    auto& headers = response->headers;
    headers.emplace_back("Access-Control-Allow-Origin", std::string(origin));
    headers.emplace_back("Access-Control-Expose-Headers", kRequestIdKey);
    headers.emplace_back("Vary", "Origin");
    if (head.method != "OPTIONS") return response;
    headers.emplace_back("Access-Control-Allow-Methods", RouteOf(head.path).methods());
    const absl::string_view wanted = head.Header("Access-Control-Request-Headers");
    if (!wanted.empty()) headers.emplace_back("Access-Control-Allow-Headers", std::string(wanted));
    headers.emplace_back("Access-Control-Max-Age", "600");
    return response;
  }

  asio::awaitable<HttpResponse> AnswerShared(const HttpRequest& request) {
    HttpResponse response = co_await Answer(request);
    co_return *Shared(request, std::move(response));
  }

  // Refusals for which the head of a request is enough.
  std::optional<HttpResponse> Check(const HttpRequest& head) {
    const Route route = RouteOf(head.path);
    absl::Status status;
    std::optional<HttpResponse> refusal;
    if (options_.local && IsForeign(head)) {
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
      case Route::Kind::kModels:
        co_return co_await ListModels();
      case Route::Kind::kModel:
        co_return co_await ShowModel(route.model);
      case Route::Kind::kCompletions:
        co_return co_await Generate(Endpoint::kCompletions, request);
      case Route::Kind::kChat:
        co_return co_await Generate(Endpoint::kChat, request);
      default:  // kHealth
        break;
    }
    // The executor answers too.
    const bool ready = options_.ready() && (co_await Describe(service_.get())).ok();
    co_return JsonResponse(ready ? 200 : 503,
                           ready ? R"({"status":"serving"})" : R"({"status":"not serving"})");
  }

  // Empty while nobody knows: without a target, unless names were given.
  std::vector<std::string> ModelNames(const v1::DescribeResponse& description) const {
    if (!options_.served_model_names.empty() || !description.has_target()) return options_.served_model_names;
    return {description.target().model()};
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
      for (const std::string& name : ModelNames(*description)) {
        data.push_back(ModelJson(name, description->target()));
      }
    }
    const Json list = {{"object", "list"}, {"data", std::move(data)}};
    co_return JsonResponse(200, list.dump());
  }

  asio::awaitable<HttpResponse> ShowModel(std::string name) const {
    const absl::StatusOr<v1::DescribeResponse> description = co_await Describe(service_.get());
    absl::Status status = description.status();
    if (status.ok()) status = CheckModel(name, *description);
    if (status.ok() && !description->has_target()) {
      status = MakeError(absl::StatusCode::kUnavailable, "TARGET_UNAVAILABLE", "the target is not reachable");
    }
    if (!status.ok()) co_return ErrorResponse(status);
    co_return JsonResponse(200, ModelJson(name, description->target()).dump());
  }

  // While nobody knows the model's name, a request waits for a target, or is refused.
  absl::Status CheckModel(const std::string& name, const v1::DescribeResponse& description) const {
    const std::vector<std::string> names = ModelNames(description);
    if (name.empty() || names.empty() || std::ranges::count(names, name) > 0) return absl::OkStatus();
    return MakeError(absl::StatusCode::kNotFound, "MODEL_NOT_FOUND",
                     absl::StrCat("the model '", name, "' is not served; '", names.front(), "' is"),
                     {{"field", "model"}});
  }

  std::string ClientOf(const HttpRequest& request) const {
    if (options_.authorize != nullptr) return ClientWithToken(request.Header("Authorization"));
    const HttpClient& client = *request.client;
    return client.certificate.empty() ? ClientAtHost(client.address)
                                      : ClientWithCertificate(client.certificate);
  }

  asio::awaitable<absl::StatusOr<OpenAiRequest>> Parse(Endpoint endpoint, const HttpRequest& request) {
    const std::string& body = request.body;
    if (body.size() <= kLongBody) co_return ParseOpenAiRequest(endpoint, body);
    const asio::any_io_executor executor = co_await asio::this_coro::executor;
    if (!parsing_) parsing_.emplace(executor, AdmissionLimits{.max_samples = 1});
    const auto turn = parsing_->Enter(ClientOf(request), 1, [](absl::Status) {});
    if (!turn.ok()) co_return turn.status();
    const absl::Status status = co_await (*turn)->WaitForTurn(Clock::time_point::max());
    if (!status.ok()) co_return status;
    const auto parse = [&]() -> asio::awaitable<absl::StatusOr<OpenAiRequest>> {
      co_return ParseOpenAiRequest(endpoint, body);
    };
    co_return co_await asio::co_spawn(parser_, parse, asio::use_awaitable);
  }

  asio::awaitable<HttpResponse> Generate(Endpoint endpoint, const HttpRequest& request) {
    const std::string id(request.Header(kRequestIdKey)), parent(request.Header(kTraceparentKey));
    const v1::RequestContext context = ReadRequestContext({{kRequestIdKey, id}, {kTraceparentKey, parent}});
    absl::StatusOr<OpenAiRequest> parsed = co_await Parse(endpoint, request);
    absl::Status status = parsed.status();
    std::string model;
    if (status.ok()) {
      const absl::StatusOr<v1::DescribeResponse> description = co_await Describe(service_.get());
      status = description.ok() ? CheckModel(parsed->model, *description) : description.status();
      const auto names = description.ok() ? ModelNames(*description) : std::vector<std::string>();
      model = names.empty() ? parsed->model : names.front();
    }
    HttpResponse response;
    if (status.ok()) {
      const char* const prefix = endpoint == Endpoint::kChat ? "chatcmpl" : "cmpl";
      AnswerHeader header{.id = absl::StrFormat("%s-%016x%016x", prefix, FreshBits(), FreshBits()),
                          .created = absl::ToUnixSeconds(absl::Now()),
                          .model = std::move(model)};
      CallMetadata metadata = {{kRequestIdKey, context.request_id()}, {kClientKey, ClientOf(request)}};
      if (!context.traceparent().empty()) metadata.emplace_back(kTraceparentKey, context.traceparent());
      const asio::any_io_executor executor = co_await asio::this_coro::executor;
      response = co_await Complete(std::make_shared<Completion>(executor, service_.get(), *std::move(parsed),
                                                                std::move(header), std::move(metadata),
                                                                request.client, &held_));
    } else {
      response = ErrorResponse(status, endpoint);
      Count(response.status, status, RouteOf(request.path));
      LogDebug("http request refused",
               {{"request_id", context.request_id()}, {"code", absl::StatusCodeToString(status.code())}});
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
      // The completion stays, since it counts what waits.
      response.next_piece = [completion = std::move(completion), pieces = *std::move(body),
                             next = size_t{0}]() mutable { return NextOf(pieces, next); };
      co_return response;
    }
    // The first chunk shows whether there is an answer at all, and with it the HTTP status.
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
  asio::thread_pool parser_{1};
  std::optional<Admission> parsing_;  // whose turn it is there
  size_t held_ = 0;                   // by answers that wait to be whole
  std::unique_ptr<HttpServer> http_;  // ends first, with all that uses the rest
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
