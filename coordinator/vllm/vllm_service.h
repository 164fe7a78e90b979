// vLLM's gRPC protocol, served beside our own: vllm.Inference, and of vllm.Control what its clients need.
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
  // Names of the model, as for the gateway.
  std::vector<std::string> served_model_names = {};
  bool checks_tokens = false;  // each call carries a known bearer token
  // Called with the code of each refusal of a generation here rather than by the service. May be null.
  std::function<void(const std::string& code)> on_request_end = {};
};

// Translates between vLLM's messages and the service behind a channel, and does nothing else: a call becomes
// one of ours, in the name of the same client. gRPC's threads; none waits. Outlives the server.
class VllmService {
 public:
  explicit VllmService(VllmOptions options);
  ~VllmService();

  // To be served.
  std::vector<grpc::Service*> services();
  // Call once, as soon as the server is there. Calls that come before wait.
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
