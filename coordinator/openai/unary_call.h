// Calls of the service that have one answer.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/net/asio.h"
#include "common/rpc/error.h"
#include "outrider/v1/inference.grpc.pb.h"

namespace outrider {

// Keys and values, the keys in lower case.
using CallMetadata = std::vector<std::pair<std::string, std::string>>;

template <typename Request, typename Response>
using UnaryMethod = void (v1::Inference::StubInterface::async_interface::*)(
    grpc::ClientContext*, const Request*, Response*, std::function<void(grpc::Status)>);

// Calls a method of the service, which must outlive the answer. The executor has one thread.
template <typename Request, typename Response>
asio::awaitable<absl::StatusOr<Response>> CallUnary(v1::Inference::Stub* service,
                                                    UnaryMethod<Request, Response> method, Request request,
                                                    CallMetadata metadata = {}) {
  struct Call {
    explicit Call(const asio::any_io_executor& executor) : done(executor) {}

    grpc::ClientContext context;
    Request request;
    Response response;
    std::optional<grpc::Status> status;
    SocketEvent done;
  };
  constexpr std::chrono::seconds kTimeout{5};
  const asio::any_io_executor executor = co_await asio::this_coro::executor;
  // Lives until gRPC has done with it, perhaps longer than whoever asked.
  const auto call = std::make_shared<Call>(executor);
  call->request = std::move(request);
  call->context.set_deadline(std::chrono::system_clock::now() + kTimeout);
  for (const auto& [key, value] : metadata) call->context.AddMetadata(key, value);
  v1::Inference::StubInterface::async_interface* const methods = service->async();
  (methods->*method)(&call->context, &call->request, &call->response,
                     [call, executor](const grpc::Status& status) {
                       asio::post(executor, [call, status] {
                         call->status = status;
                         call->done.Notify();
                       });
                     });
  while (!call->status) co_await call->done.Wait();
  if (!call->status->ok()) co_return FromGrpc(*call->status);
  co_return std::move(call->response);
}

inline asio::awaitable<absl::StatusOr<v1::DescribeResponse>> Describe(v1::Inference::Stub* service) {
  return CallUnary<v1::DescribeRequest, v1::DescribeResponse>(
      service, &v1::Inference::StubInterface::async_interface::Describe, {});
}

}  // namespace outrider
