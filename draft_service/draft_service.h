// The draft's gRPC service.
#pragma once

#include "common/engine/worker.h"
#include "outrider/v1/draft.grpc.pb.h"

namespace outrider {

// Turns items into work and answers into results. Thread-safe; the worker and info must outlive it.
class DraftService final : public v1::Draft::CallbackService {
 public:
  DraftService(Worker& worker, const v1::ServerInfo& info) : worker_(worker), info_(info) {}

  grpc::ServerBidiReactor<v1::ProposeRequest, v1::ProposeResponse>* Propose(
      grpc::CallbackServerContext* context) override;

 private:
  Worker& worker_;
  const v1::ServerInfo& info_;
};

}  // namespace outrider
