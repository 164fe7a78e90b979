#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/cli/flags.h"
#include "common/rpc/credentials.h"
#include "common/rpc/server.h"
#include "common/spec/status.h"
#include "grpc/health.grpc.pb.h"

namespace outrider {
namespace {

namespace health = ::grpc::health::v1;

constexpr std::chrono::seconds kPatience{5};

}  // namespace

absl::StatusOr<int> RunHealth(const HealthFlags& flags) {
  const auto credentials = OUTRIDER_TRY(MakeChannelCredentials(flags.security));
  const auto stub =
      health::Health::NewStub(grpc::CreateCustomChannel(flags.address, credentials, ChannelArguments()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  health::HealthCheckRequest request;
  request.set_service(flags.service);
  health::HealthCheckResponse response;
  const grpc::Status status = stub->Check(&context, request, &response);
  if (!status.ok()) {
    return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                        absl::StrCat("no answer from ", flags.address, ": ", status.error_message()));
  }
  std::printf("%s\n", health::HealthCheckResponse::ServingStatus_Name(response.status()).c_str());
  return response.status() == health::HealthCheckResponse::SERVING ? 0 : 1;
}

}  // namespace outrider
