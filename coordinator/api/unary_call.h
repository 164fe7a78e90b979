// Unary calls of the service, from within its process.
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

// Calls a method of `service`, which must outlive the call. `done` gets an absl::StatusOr<Response>, on one
// of gRPC's threads.
template <typename Request, typename Response, typename Done>
void StartUnary(v1::Inference::Stub* service, UnaryMethod<Request, Response> method, Request request,
                const CallMetadata& metadata, Done done) {
  struct Call {
    grpc::ClientContext context;
    Request request;
    Response response;
  };
  constexpr std::chrono::seconds kTimeout{5};
  const auto call = std::make_shared<Call>();
  call->request = std::move(request);
  call->context.set_deadline(std::chrono::system_clock::now() + kTimeout);
  for (const auto& [key, value] : metadata) call->context.AddMetadata(key, value);
  v1::Inference::StubInterface::async_interface* const methods = service->async();
  (methods->*method)(&call->context, &call->request, &call->response,
                     [call, done = std::move(done)](const grpc::Status& status) {
                       using Answer = absl::StatusOr<Response>;
                       done(status.ok() ? Answer(std::move(call->response)) : Answer(FromGrpc(status)));
                     });
}

// Like StartUnary, for a coroutine whose executor has one thread.
template <typename Request, typename Response>
asio::awaitable<absl::StatusOr<Response>> CallUnary(v1::Inference::Stub* service,
                                                    UnaryMethod<Request, Response> method, Request request,
                                                    CallMetadata metadata = {}) {
  struct Answer {
    explicit Answer(const asio::any_io_executor& executor) : done(executor) {}

    std::optional<absl::StatusOr<Response>> response;
    SocketEvent done;
  };
  const asio::any_io_executor executor = co_await asio::this_coro::executor;
  // Lives until gRPC is done with it, perhaps longer than the coroutine.
  const auto answer = std::make_shared<Answer>(executor);
  StartUnary(service, method, std::move(request), metadata,
             [answer, executor](absl::StatusOr<Response> response) {
               asio::post(executor, [answer, response = std::move(response)]() mutable {
                 answer->response = std::move(response);
                 answer->done.Notify();
               });
             });
  while (!answer->response) co_await answer->done.Wait();
  co_return *std::move(answer->response);
}

inline asio::awaitable<absl::StatusOr<v1::DescribeResponse>> Describe(v1::Inference::Stub* service) {
  return CallUnary<v1::DescribeRequest, v1::DescribeResponse>(
      service, &v1::Inference::StubInterface::async_interface::Describe, {});
}

}  // namespace outrider
