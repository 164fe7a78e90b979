#include "coordinator/gateway/gateway.h"

#include <httplib.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "common/obs/log.h"
#include "common/rpc/error.h"
#include "common/rpc/fresh_bits.h"
#include "coordinator/api/request_context.h"
#include "coordinator/gateway/client_connection.h"
#include "coordinator/gateway/completion.h"
#include "coordinator/gateway/openai_error.h"
#include "coordinator/gateway/openai_request.h"

namespace outrider {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kJson[] = "application/json";
// A thread is busy with a connection for as long as it is open. Some more than there can be requests, so that
// the others are told to come back rather than left waiting.
constexpr int kSpareThreads = 32;
constexpr int kMaxThreads = 1024;
// As long as a client may leave its connection unread, or open without a request.
constexpr int kWriteTimeoutSeconds = 60;
constexpr int kIdleSeconds = 5;
constexpr int kMaxRequestsOfAConnection = 1000;
constexpr int kBacklog = 512;
constexpr auto kDescribeTimeout = std::chrono::seconds(5);

class HttpServer : public httplib::Server {
 public:
  // The library lets five connections wait to be accepted. Once it listens.
  void WidenBacklog() { ::listen(svr_sock_, kBacklog); }
};

std::string NewId(const char* prefix) {
  return absl::StrFormat("%s-%016x%016x", prefix, FreshBits(), FreshBits());
}

// Answers in progress. Copies of a Ticket belong to one answer.
class Answers {
 public:
  using Ticket = std::shared_ptr<void>;

  Ticket Begin() {
    absl::MutexLock lock(&mutex_);
    ++count_;
    return Ticket(this, [](void* self) { static_cast<Answers*>(self)->End(); });
  }
  void WaitUntilNone(absl::Duration patience) {
    absl::MutexLock lock(&mutex_);
    const auto none = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return count_ == 0; };
    mutex_.AwaitWithTimeout(absl::Condition(&none), patience);
  }

 private:
  void End() {
    absl::MutexLock lock(&mutex_);
    --count_;
  }

  absl::Mutex mutex_;
  int count_ ABSL_GUARDED_BY(mutex_) = 0;
};

// What the headers say of the request, as metadata of gRPC would.
v1::RequestContext ContextOf(const httplib::Request& request) {
  const std::string id = request.get_header_value(kRequestIdKey);
  const std::string parent = request.get_header_value(kTraceparentKey);
  return ReadRequestContext({{kRequestIdKey, id}, {kTraceparentKey, parent}});
}

// The metadata of a call for this request: what it is named by, and who asks.
CallMetadata MetadataOfCall(const v1::RequestContext& context, const httplib::Request& request) {
  CallMetadata metadata = {{kRequestIdKey, context.request_id()},
                           {kClientKey, ClientAtHost(request.remote_addr)}};
  if (!context.traceparent().empty()) metadata.emplace_back(kTraceparentKey, context.traceparent());
  if (const std::string token = request.get_header_value("Authorization"); !token.empty()) {
    metadata.emplace_back("authorization", token);
  }
  return metadata;
}

void SetError(const absl::Status& status, Endpoint endpoint, httplib::Response& response) {
  const HttpError error = ToHttpError(status, endpoint);
  response.status = error.status;
  response.set_content(error.body, kJson);
  if (error.retry_after_seconds > 0) {
    response.set_header("Retry-After", std::to_string(error.retry_after_seconds));
  }
}

}  // namespace

class Gateway::Server {
 public:
  Server(GatewayOptions options, const std::shared_ptr<grpc::Channel>& channel)
      : options_(std::move(options)), started_(absl::Now()), service_(v1::Inference::NewStub(channel)) {}

  ~Server() {
    http_.stop();
    if (thread_.joinable()) thread_.join();
  }

  absl::Status Start() {
    const size_t colon = options_.listen.rfind(':');
    std::string host = options_.listen.substr(0, colon);
    if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
    int port = -1;
    if (colon == std::string::npos || host.empty() ||
        !absl::SimpleAtoi(options_.listen.substr(colon + 1), &port) || port < 0 || port > 65535) {
      return absl::InvalidArgumentError(
          absl::StrCat("--http-listen: '", options_.listen, "' is not HOST:PORT"));
    }
    Configure();
    // The library's default would let two servers share a port.
    http_.set_socket_options([](int socket) {
      const int yes = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    });
    if (port == 0) {
      port = http_.bind_to_any_port(host);
    } else if (!http_.bind_to_port(host, port)) {
      port = -1;
    }
    if (port <= 0) {
      return absl::UnavailableError(absl::StrCat("--http-listen: cannot listen on ", options_.listen,
                                                 ": in use or not an address of this host"));
    }
    http_.WidenBacklog();
    port_ = port;
    address_ = absl::StrCat(options_.listen.substr(0, colon), ":", port);
    thread_ = std::thread([this] { http_.listen_after_bind(); });
    // Only what runs can be stopped.
    while (!http_.is_running()) std::this_thread::yield();
    return absl::OkStatus();
  }

  const std::string& address() const { return address_; }
  void Finish(absl::Duration patience) { answers_.WaitUntilNone(patience); }

 private:
  using Request = httplib::Request;
  using Response = httplib::Response;

  void Configure() {
    const int threads = std::min(options_.max_requests, kMaxThreads - kSpareThreads) + kSpareThreads;
    http_.new_task_queue = [threads] { return new httplib::ThreadPool(static_cast<size_t>(threads)); };
    http_.set_payload_max_length(options_.max_body_bytes);
    http_.set_write_timeout(kWriteTimeoutSeconds);
    http_.set_keep_alive_timeout(kIdleSeconds);
    http_.set_keep_alive_max_count(kMaxRequestsOfAConnection);
    http_.set_tcp_nodelay(true);
    http_.Get("/health", [this](const Request&, Response& response) {
      const bool ready = options_.ready();
      response.status = ready ? 200 : 503;
      response.set_content(ready ? R"({"status":"serving"})" : R"({"status":"not serving"})", kJson);
    });
    http_.Get("/v1/models", [this](const Request& request, Response& response) {
      if (Admits(request, response)) ListModels(response);
    });
    http_.Get("/v1/models/(.+)", [this](const Request& request, Response& response) {
      if (Admits(request, response)) ShowModel(request.matches[1], response);
    });
    http_.Post("/v1/completions", [this](const Request& request, Response& response) {
      if (Admits(request, response)) Generate(Endpoint::kCompletions, request, response);
    });
    http_.Post("/v1/chat/completions", [this](const Request& request, Response& response) {
      if (Admits(request, response)) Generate(Endpoint::kChat, request, response);
    });
    http_.set_exception_handler([](const Request&, Response& response, const std::exception_ptr&) {
      SetError(absl::InternalError("the request could not be handled"), Endpoint::kCompletions, response);
    });
    // What the library refuses itself has no body.
    http_.set_error_handler(httplib::Server::Handler([this](const Request& request, Response& response) {
      if (!response.body.empty()) return;
      const int status = response.status;
      const bool unknown = status == 404;
      SetError(
          MakeError(unknown ? absl::StatusCode::kNotFound : absl::StatusCode::kInvalidArgument,
                    unknown ? "UNKNOWN_URL" : "INVALID_HTTP",
                    unknown ? absl::StrCat("nothing answers ", request.method, " ", request.path)
                            : absl::StrCat("HTTP error ", status,
                                           status == 413 ? absl::StrCat("; a body has at most ",
                                                                        options_.max_body_bytes, " bytes")
                                                         : "")),
          Endpoint::kCompletions, response);
      response.status = status;
    }));
  }

  bool Admits(const Request& request, Response& response) const {
    if (options_.authorize == nullptr) return true;
    const absl::Status status = options_.authorize(request.get_header_value("Authorization"));
    if (!status.ok()) {
      SetError(status, Endpoint::kCompletions, response);
      response.set_header("WWW-Authenticate", "Bearer");
    }
    return status.ok();
  }

  absl::StatusOr<v1::DescribeResponse> Describe() const {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kDescribeTimeout);
    v1::DescribeResponse description;
    const grpc::Status status = service_->Describe(&context, v1::DescribeRequest(), &description);
    if (!status.ok()) return FromGrpc(status);
    return description;
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

  void ListModels(Response& response) const {
    const auto description = Describe();
    if (!description.ok()) return SetError(description.status(), Endpoint::kCompletions, response);
    Json data = Json::array();
    if (description->has_target()) {
      for (const std::string& name : ModelNames(*description)) {
        data.push_back(ModelJson(name, description->target()));
      }
    }
    response.set_content(Json({{"object", "list"}, {"data", std::move(data)}}).dump(), kJson);
  }

  void ShowModel(const std::string& name, Response& response) const {
    const auto description = Describe();
    absl::Status status = description.status();
    if (status.ok()) status = CheckModel(name, *description);
    if (status.ok() && !description->has_target()) {
      status = MakeError(absl::StatusCode::kUnavailable, "TARGET_UNAVAILABLE", "the target is not reachable");
    }
    if (!status.ok()) return SetError(status, Endpoint::kCompletions, response);
    response.set_content(ModelJson(name, description->target()).dump(), kJson);
  }

  // While nobody knows the model's name, a request waits for a target, or is refused.
  absl::Status CheckModel(const std::string& name, const v1::DescribeResponse& description) const {
    const std::vector<std::string> names = ModelNames(description);
    if (name.empty() || names.empty() || std::find(names.begin(), names.end(), name) != names.end()) {
      return absl::OkStatus();
    }
    return MakeError(absl::StatusCode::kNotFound, "MODEL_NOT_FOUND",
                     absl::StrCat("the model '", name, "' is not served; '", names.front(), "' is"),
                     {{"field", "model"}});
  }

  void Generate(Endpoint endpoint, const Request& request, Response& response) {
    const Answers::Ticket ticket = answers_.Begin();
    v1::RequestContext context = ContextOf(request);
    response.set_header(kRequestIdKey, context.request_id());
    absl::StatusOr<OpenAiRequest> parsed = ParseOpenAiRequest(endpoint, request.body);
    absl::Status status = parsed.status();
    std::string model;
    if (status.ok()) {
      const auto description = Describe();
      status = description.ok() ? CheckModel(parsed->model, *description) : description.status();
      const auto names = description.ok() ? ModelNames(*description) : std::vector<std::string>();
      model = names.empty() ? parsed->model : names.front();
    }
    if (!status.ok()) {
      LogInfo("http request refused", {{"request_id", context.request_id()},
                                       {"path", request.path},
                                       {"code", absl::StatusCodeToString(status.code())},
                                       {"error", std::string(status.message())}});
      return SetError(status, endpoint, response);
    }
    AnswerHeader header{.id = NewId(endpoint == Endpoint::kChat ? "chatcmpl" : "cmpl"),
                        .created = absl::ToUnixSeconds(absl::Now()),
                        .model = std::move(model)};
    const ClientConnection client(request.remote_addr, request.remote_port, port_);
    Answer{ticket,
           std::make_shared<Completion>(service_.get(), *std::move(parsed), std::move(header),
                                        MetadataOfCall(context, request), [client] { return client.gone(); })}
        .Send(response);
  }

  // By providers, which live until the answer is sent: so do a ticket and a completion.
  struct Answer {
    Answers::Ticket ticket;
    std::shared_ptr<Completion> completion;

    void Send(Response& response) const {
      const absl::Status status = completion->request().stream ? Stream(response) : SendBody(response);
      if (!status.ok()) SetError(status, completion->request().endpoint, response);
    }
    absl::Status SendBody(Response& response) const {
      absl::StatusOr<std::string> body = completion->Body();
      if (!body.ok()) return body.status();
      const size_t size = body->size();
      response.set_content_provider(
          size, kJson,
          [ticket = ticket, body = *std::move(body)](size_t offset, size_t length, httplib::DataSink& sink) {
            return sink.write(body.data() + offset, length);
          });
      return absl::OkStatus();
    }
    absl::Status Stream(Response& response) const {
      // The first chunk shows whether there is an answer at all, and with it the HTTP status.
      if (absl::Status status = completion->Begin(); !status.ok()) return status;
      response.set_header("Cache-Control", "no-cache");
      response.set_chunked_content_provider(
          "text/event-stream", [ticket = ticket, completion = completion](size_t, httplib::DataSink& sink) {
            const std::optional<std::string> events = completion->NextEvents();
            if (!events) sink.done();
            return !events || events->empty() || sink.write(events->data(), events->size());
          });
      return absl::OkStatus();
    }
  };

  const GatewayOptions options_;
  const absl::Time started_;
  const std::unique_ptr<v1::Inference::Stub> service_;
  Answers answers_;
  HttpServer http_;
  int port_ = 0;
  std::string address_;
  std::thread thread_;
};

Gateway::Gateway(std::unique_ptr<Server> server) : server_(std::move(server)) {}
Gateway::~Gateway() = default;

const std::string& Gateway::address() const { return server_->address(); }
void Gateway::Finish(absl::Duration patience) { server_->Finish(patience); }

absl::StatusOr<std::unique_ptr<Gateway>> Gateway::Start(GatewayOptions options,
                                                        const std::shared_ptr<grpc::Channel>& channel) {
  auto server = std::make_unique<Server>(std::move(options), channel);
  if (absl::Status status = server->Start(); !status.ok()) return status;
  return std::unique_ptr<Gateway>(new Gateway(std::move(server)));
}

}  // namespace outrider
