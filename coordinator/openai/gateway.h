// An HTTP server for OpenAI's API (/v1/completions, /v1/chat/completions, /v1/models), /health, vLLM's
// /tokenize and /detokenize, and /metrics, which scrapers expect on the model's port, as vLLM has it.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/net/http_parser.h"

namespace outrider {

struct GatewayOptions {
  std::string listen = {};  // HOST:PORT; port 0 picks one
  // PEM files: certificate chain and private key for HTTPS, and the authorities that sign the certificates
  // that clients must then show. Changed files are read again. All empty: HTTP.
  std::string cert = {};
  std::string key = {};
  std::string client_ca = {};
  HttpLimits limits = {};
  bool local = false;  // only for programs of this host: refuses requests from web pages of other hosts
  // Origins of pages that browsers may send requests from, "https://HOST:PORT"; "*": any.
  std::vector<std::string> allowed_origins = {};
  // Names of the model: requests may use any of them, answers use the first. Empty: the target's own.
  std::vector<std::string> served_model_names = {};
  // Returns the answer of /metrics. Called on any thread, like the functions below.
  std::function<HttpResponse()> metrics = [] { return HttpResponse(); };
  // Whether /health reports that the coordinator serves.
  std::function<bool()> ready = {};
  // OK if an Authorization header, perhaps empty, opens all endpoints but /health. Null: all are open.
  std::function<absl::Status(absl::string_view authorization)> authorize = {};
  // Called with the HTTP status of each refusal, but for generations that the service refuses. May be null.
  std::function<void(int status)> on_refused = {};
  // Called with the status code of each generation refused here, for requests_total. May be null.
  std::function<void(const std::string& code)> on_request_end = {};
};

// Translates between JSON and the gRPC service behind a channel, and does nothing else. Thread-safe.
class Gateway {
 public:
  // Starts to serve. UNAVAILABLE, with the address, if it cannot be bound; INVALID_ARGUMENT for other errors.
  static absl::StatusOr<std::unique_ptr<Gateway>> Start(GatewayOptions options,
                                                        const std::shared_ptr<grpc::Channel>& channel);
  ~Gateway();

  // The bound address, with the port that was picked.
  const std::string& address() const;

  // Takes no more connections. Waits at most `patience` for answers to reach their clients.
  void Finish(absl::Duration patience);

 private:
  class Server;
  explicit Gateway(std::unique_ptr<Server> server);

  std::unique_ptr<Server> server_;
};

}  // namespace outrider
