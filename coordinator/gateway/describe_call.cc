#include "coordinator/gateway/describe_call.h"

#include <chrono>
#include <memory>
#include <optional>

#include "common/net/event.h"
#include "common/rpc/error.h"

namespace outrider {
namespace {

constexpr std::chrono::seconds kTimeout{5};

struct Call {
  explicit Call(const asio::any_io_executor& executor) : done(executor) {}

  grpc::ClientContext context;
  v1::DescribeRequest request;
  v1::DescribeResponse response;
  std::optional<grpc::Status> status;
  SocketEvent done;
};

}  // namespace

asio::awaitable<absl::StatusOr<v1::DescribeResponse>> Describe(v1::Inference::Stub* service) {
  const asio::any_io_executor executor = co_await asio::this_coro::executor;
  const auto call = std::make_shared<Call>(executor);
  call->context.set_deadline(std::chrono::system_clock::now() + kTimeout);
  service->async()->Describe(&call->context, &call->request, &call->response,
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

}  // namespace outrider
