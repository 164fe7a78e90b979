// The public gRPC service.
#pragma once

#include <utility>

#include "coordinator/api/service_parts.h"
#include "outrider/v1/inference.grpc.pb.h"

namespace outrider {

// gRPC calls in from its threads; everything else happens on the executor.
class InferenceService final : public v1::Inference::CallbackService {
 public:
  explicit InferenceService(ServiceParts parts) : parts_(std::move(parts)) {}

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(grpc::CallbackServerContext* context,
                                                           const v1::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context, const v1::DescribeRequest* request,
                                     v1::DescribeResponse* response) override;

 private:
  const ServiceParts parts_;
};

}  // namespace outrider
