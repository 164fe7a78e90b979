// The gRPC service of the target.
#pragma once

#include "common/engine/worker.h"
#include "common/rpc/batch_server.h"
#include "common/serve/model_service.h"
#include "outrider/v1/target.grpc.pb.h"

namespace outrider {

// Converts items to work and answers to results. Thread-safe. `worker` and `info` must outlive it.
class TargetService final : public v1::Target::WithRawMethod_Verify<v1::Target::Service>,
                            public StreamService {
 public:
  TargetService(Worker& worker, const v1::ServerInfo& info) : worker_(worker), info_(info) {}

  grpc::Service* service() override { return this; }
  void Serve(RpcServer& server) override {
    streams_.Serve(server, [this](auto* context, auto* stream, auto* queue, auto* tag) {
      RequestVerify(context, stream, queue, queue, tag);
    });
  }
  void HoldAnswers() override { streams_.Hold(); }
  void ReleaseAnswers() override { streams_.Release(); }
  void RefuseStreams() override { streams_.Close(); }
  void EndStreams() override { streams_.EndAll(); }

 private:
  void OnItem(v1::TargetItem&& item, const std::shared_ptr<Outbox<v1::VerifyResponse>>& results);

  Worker& worker_;
  const v1::ServerInfo& info_;
  BatchServer<v1::VerifyRequest, v1::VerifyResponse> streams_{
      info_, [this](auto&& item, const auto& results) { OnItem(std::move(item), results); },
      [this] { return worker_.items(); }};
};

// What a program says of the target that it serves.
ModelServiceSpec TargetSpec();

}  // namespace outrider
