// Reflection under its stable name, grpc.reflection.v1, which current tools ask for first. gRPC 1.51 has only
// v1alpha, whose messages are the same.
#pragma once

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <utility>

namespace outrider {

// Passes calls of v1 on to v1alpha of the same server. Other methods get UNIMPLEMENTED. Thread-safe.
class StableReflection final : public grpc::CallbackGenericService {
 public:
  // `self` returns a channel to the server that has this service. It is called only while that runs.
  explicit StableReflection(std::function<std::shared_ptr<grpc::Channel>()> self) : self_(std::move(self)) {}

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override;

 private:
  const std::function<std::shared_ptr<grpc::Channel>()> self_;
};

}  // namespace outrider
