// An HTTP server that speaks OpenAI's API: /v1/completions, /v1/chat/completions, /v1/models, /health.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace outrider {

struct GatewayOptions {
  std::string listen;  // HOST:PORT; port 0 picks one
  int max_requests;  // of the service, in progress or waiting; a few more than that can be connected at once
  size_t max_body_bytes = 4 << 20;
  // What the model is called: requests may use any of the names, answers use the first. Empty: the target's
  // own.
  std::vector<std::string> served_model_names = {};
  // What /health says. Any thread.
  std::function<bool()> ready;
  // Whether the value of an Authorization header, perhaps empty, opens everything but /health. Null: any
  // does. Any thread.
  std::function<absl::Status(absl::string_view authorization)> authorize;
};

// Translates between JSON and the gRPC service behind a channel, and does nothing else: what is valid, when a
// request is admitted and what it costs is for the service to say. Thread-safe.
class Gateway {
 public:
  // Starts to serve. UNAVAILABLE naming the address if it cannot be had.
  static absl::StatusOr<std::unique_ptr<Gateway>> Start(GatewayOptions options,
                                                        const std::shared_ptr<grpc::Channel>& channel);
  ~Gateway();

  // The address that was bound, with the port that was picked.
  const std::string& address() const;

  // Waits until the answers in progress are with their clients, at most for `patience`.
  void Finish(absl::Duration patience);

 private:
  class Server;
  explicit Gateway(std::unique_ptr<Server> server);

  std::unique_ptr<Server> server_;
};

}  // namespace outrider
