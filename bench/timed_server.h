// The service of a draft or target with an engine of timed_pair.h, in this process.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "bench/generated_model.h"
#include "bench/timed_pair.h"
#include "common/engine/runner.h"
#include "common/engine/worker.h"
#include "common/rpc/queue_poller.h"
#include "common/rpc/server.h"
#include "common/serve/model_service.h"
#include "common/text/tokenizer.h"
#include "outrider/v1/sequence.pb.h"

namespace outrider {

// The ServerInfo of both servers. `tokenizer` is a folder.
inline absl::StatusOr<v1::ServerInfo> TimedServerInfo(const std::string& tokenizer, const ModelShape& shape) {
  const auto loaded = Tokenizer::Load(tokenizer + "/tokenizer.json");
  if (!loaded.ok()) return loaded.status();
  v1::ServerInfo info;
  info.set_boot_id(1);
  info.set_fingerprint(ModelFingerprint((*loaded)->Fingerprint(), shape.vocab, {}));
  info.set_model("timed");
  info.set_vocab_size(static_cast<uint32_t>(shape.vocab));
  info.set_max_context(static_cast<uint32_t>(shape.context));
  info.set_kv_blocks(1 << 14);
  info.set_block_size(16);
  info.set_max_draft_tokens(kMaxDraftTokens);
  info.set_max_message_bytes(kMaxMessageBytes);
  return info;
}

// Serves until it is destroyed.
class TimedServer {
 public:
  // The model in `model_dir` has the shape of `info`, and any weights.
  static absl::StatusOr<std::unique_ptr<TimedServer>> Start(const ModelServiceSpec& spec,
                                                            const TimedModelOptions& timed,
                                                            const std::string& model_dir,
                                                            const v1::ServerInfo& info,
                                                            const std::string& listen) {
    RunnerOptions options;
    options.model_dir = model_dir;
    options.threads = 1;
    options.kv_blocks = static_cast<int>(info.kv_blocks());
    options.block_size = static_cast<int>(info.block_size());
    auto runner = Runner::Load(options, TimedBackend(timed));
    if (!runner.ok()) return runner.status();
    auto server = std::unique_ptr<TimedServer>(new TimedServer(info));
    QueuePoller& poller = server->poller_;
    const std::unique_ptr<StreamService>& service = server->service_;
    auto sampler = spec.make_sampler(server->info_, (*runner)->config());
    if (!sampler.ok()) return sampler.status();
    server->worker_.emplace(*std::move(runner), *std::move(sampler), WorkerOptions{}, Worker::Hooks{},
                            CommandSource{.poll = [&](absl::Time deadline) { poller.Poll(deadline); },
                                          .wake = [&] { poller.Wake(); },
                                          .hold_answers = [&] { service->HoldAnswers(); },
                                          .release_answers = [&] { service->ReleaseAnswers(); }});
    server->service_ =
        spec.make_service(*server->worker_, server->info_, /*grammars=*/nullptr, /*tracer=*/nullptr);
    auto rpc = RpcServer::Start(listen, {}, {server->service_->service()}, &server->poller_);
    if (!rpc.ok()) return rpc.status();
    server->rpc_ = *std::move(rpc);
    server->service_->Serve(*server->rpc_);
    return server;
  }
  ~TimedServer() {
    if (rpc_ != nullptr) rpc_->Shutdown(absl::ZeroDuration());
  }

 private:
  explicit TimedServer(const v1::ServerInfo& info) : info_(info) {}

  const v1::ServerInfo info_;
  QueuePoller poller_;
  std::unique_ptr<StreamService> service_;
  std::optional<Worker> worker_;
  std::unique_ptr<RpcServer> rpc_;
};

}  // namespace outrider
