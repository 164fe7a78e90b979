// The target's gRPC service.
#pragma once

#include "common/engine/worker.h"
#include "outrider/v1/target.grpc.pb.h"

namespace outrider {

// Turns items into work and answers into results. Thread-safe; the worker and info must outlive it.
class TargetService final : public v1::Target::CallbackService {
 public:
  TargetService(Worker& worker, const v1::ServerInfo& info) : worker_(worker), info_(info) {}

  grpc::ServerBidiReactor<v1::VerifyRequest, v1::VerifyResponse>* Verify(
      grpc::CallbackServerContext* context) override;

 private:
  Worker& worker_;
  const v1::ServerInfo& info_;
};

}  // namespace outrider
