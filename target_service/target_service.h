// The gRPC service of the target.
#pragma once

#include "common/engine/worker.h"
#include "common/rpc/batch_server.h"
#include "common/serve/model_service.h"
#include "outrider/v1/target.grpc.pb.h"

namespace outrider {

// Converts items to work and answers to results. Thread-safe. `worker` and `info` must outlive it.
class TargetService final : public v1::Target::WithRawCallbackMethod_Verify<v1::Target::Service>,
                            public StreamService {
 public:
  TargetService(Worker& worker, const v1::ServerInfo& info) : worker_(worker), info_(info) {}

  BatchReactor* Verify(grpc::CallbackServerContext* context) override;

  grpc::Service* service() override { return this; }
  void RefuseStreams() override { streams_.Close(); }
  void EndStreams() override { streams_.EndAll(); }

 private:
  using Stream = BatchServerStream<v1::VerifyRequest, v1::VerifyResponse>;

  Worker& worker_;
  const v1::ServerInfo& info_;
  Stream::Set streams_;
};

}  // namespace outrider
