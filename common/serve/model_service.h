// The common part of processes that serve models: flags, loading, the worker, metrics, health, and an orderly
// end.
#pragma once

#include <grpcpp/impl/service_type.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/engine/decoder/model_config.h"
#include "common/engine/worker.h"
#include "common/grammar/grammar_cache.h"
#include "common/obs/tracer.h"
#include "common/rpc/server.h"
#include "outrider/v1/sequence.pb.h"

// CLI11's header costs five seconds in each file that includes it.
namespace CLI {
class App;
}

namespace outrider {

// A gRPC service of streams that are open for as long as a client lives.
class StreamService {
 public:
  virtual ~StreamService() = default;
  virtual grpc::Service* service() = 0;
  // Accepts streams from now on. `server` must have been started with a poller.
  virtual void Serve(RpcServer& server) = 0;
  // Answers given between these two calls are sent together.
  virtual void HoldAnswers() = 0;
  virtual void ReleaseAnswers() = 0;
  // Refuses new streams from now on, and tells the running ones that the server is going away.
  virtual void RefuseStreams() = 0;
  // Ends all streams with UNAVAILABLE once their answers are written.
  virtual void EndStreams() = 0;
};

// The differences between services.
struct ModelServiceSpec {
  std::string name;    // "draft" or "target"; metrics begin with outrider_<name>_
  std::string listen;  // default address
  ModelRole role = ModelRole::kAny;
  // Defines the service's own flags, some of which set options of the runner; may be null.
  std::function<void(CLI::App&, RunnerOptions&)> define_flags;
  // Adds to `info` what is specific to this service; may be null.
  std::function<void(v1::ServerInfo& info)> complete_info = nullptr;
  // Fails if the model lacks what the flags ask for.
  std::function<absl::StatusOr<std::unique_ptr<Sampler>>(const v1::ServerInfo& info,
                                                         const ModelConfig& model)>
      make_sampler;
  // Makes the gRPC service. `worker`, `info` and `tracer` must outlive it, and `grammars` must end first.
  // `grammars` and `tracer` may be null.
  std::function<std::unique_ptr<StreamService>(Worker& worker, const v1::ServerInfo& info,
                                               GrammarCache* grammars, Tracer* tracer)>
      make_service;
};

struct ModelProgramSpec {
  std::string name;            // outrider-<name>
  std::string description;     // for --help
  std::string metrics_listen;  // default address
  // One service, or several with different names. Each has its own address, engine thread and KV pool. With
  // several, flags --<name>-... are for one of them and the others for all. They are loaded at the same time.
  // One that fails ends the process, and health is that of all together.
  std::vector<ModelServiceSpec> services;
};

// Runs the process until SIGINT or SIGTERM. Returns its exit code: 0 after an orderly end, kUsageError if the
// command line cannot be parsed, else 1. An error prints one line on stderr.
int RunModelProgram(const ModelProgramSpec& program, int argc, char** argv);

}  // namespace outrider
