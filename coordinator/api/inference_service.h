// The public gRPC service.
#pragma once

#include <atomic>
#include <utility>

#include "coordinator/api/generate_call.h"
#include "outrider/v1/inference.grpc.pb.h"

namespace outrider {

// gRPC calls in from its threads; everything else happens on the executor.
class InferenceService final : public v1::Inference::WithRawCallbackMethod_Generate<
                                   v1::Inference::WithRawCallbackMethod_Describe<v1::Inference::Service>> {
 public:
  explicit InferenceService(ServiceParts parts) : parts_(std::move(parts)) {}

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;

  // Generations whose end has not been sent yet. Thread-safe.
  int unfinished() const { return unfinished_; }

 private:
  // On the executor.
  v1::DescribeResponse Description() const;

  std::atomic<int> unfinished_ = 0;
  const ServiceParts parts_;
};

}  // namespace outrider
