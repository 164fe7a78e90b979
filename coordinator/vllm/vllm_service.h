// vLLM's gRPC protocol, served beside Outrider's: vllm.Inference, and what clients need of vllm.Control.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/vllm/vllm_request.h"

namespace outrider {

struct VllmOptions {
  VllmDefaults defaults = {};
  // Names of the model; see GatewayOptions.
  std::vector<std::string> served_model_names = {};
  bool checks_tokens = false;  // each call carries a known bearer token
  // Called with the status code of each generation that is refused before the service sees it. May be null.
  std::function<void(const std::string& code)> on_request_end = {};
};

// Translates between vLLM's messages and the service behind a channel, and does nothing else: each call makes
// one of the service for the same client. gRPC's threads, which wait only for Open. Outlives the server.
class VllmService {
 public:
  explicit VllmService(VllmOptions options);
  ~VllmService();

  // The services to register with the gRPC server.
  std::vector<grpc::Service*> services();
  // Call once, as soon as the server has started. Calls that come earlier wait for this.
  void Open(const std::shared_ptr<grpc::Channel>& channel);

  // Generations whose end has not been sent yet. Thread-safe.
  int unfinished() const;

 private:
  class Inference;
  class Control;
  class Calls;

  const std::unique_ptr<Calls> calls_;
  const std::unique_ptr<Inference> inference_;
  const std::unique_ptr<Control> control_;
};

}  // namespace outrider
