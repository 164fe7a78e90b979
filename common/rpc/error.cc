#include "common/rpc/error.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "google/rpc/error_details.pb.h"

namespace outrider {
namespace {

constexpr char kRetryInfo[] = "type.googleapis.com/google.rpc.RetryInfo";
constexpr absl::string_view kReasonType = "outrider/reason";
// Clients accept 8 KiB of trailers, which hold the message twice. The message may quote a client's input.
constexpr size_t kMaxMessageBytes = 1000;
constexpr size_t kMaxMetadataBytes = 200;

}  // namespace

absl::Status BusyError(absl::string_view reason, absl::string_view message, absl::Duration retry_after) {
  return WithRetryDelay(MakeError(absl::StatusCode::kResourceExhausted, reason, message), retry_after);
}

absl::Status WithRetryDelay(absl::Status status, absl::Duration retry_after) {
  google::rpc::RetryInfo retry;
  const absl::Duration whole = absl::Floor(retry_after, absl::Seconds(1));
  retry.mutable_retry_delay()->set_seconds(absl::ToInt64Seconds(whole));
  retry.mutable_retry_delay()->set_nanos(static_cast<int>(absl::ToInt64Nanoseconds(retry_after - whole)));
  status.SetPayload(kRetryInfo, absl::Cord(retry.SerializeAsString()));
  return status;
}

absl::Duration RetryDelay(const absl::Status& status) {
  const auto payload = status.GetPayload(kRetryInfo);
  google::rpc::RetryInfo retry;
  if (!payload || !retry.ParseFromString(std::string(*payload))) return absl::ZeroDuration();
  return absl::Seconds(retry.retry_delay().seconds()) + absl::Nanoseconds(retry.retry_delay().nanos());
}

google::rpc::Status ToProto(const absl::Status& status) {
  google::rpc::Status proto;
  proto.set_code(static_cast<int>(status.code()));
  proto.set_message(Excerpt(status.message(), kMaxMessageBytes));
  if (status.ok()) return proto;
  google::rpc::ErrorInfo info;
  info.set_reason(ReasonOf(status));
  info.set_domain("outrider");
  google::protobuf::Any* const first = proto.add_details();
  status.ForEachPayload([&](absl::string_view type, const absl::Cord& payload) {
    if (type == kReasonType || type == kProblemType) return;
    const std::string value(payload);
    if (absl::ConsumePrefix(&type, kMetadataType)) {
      (*info.mutable_metadata())[std::string(type)] = Excerpt(value, kMaxMetadataBytes);
      return;
    }
    google::protobuf::Any* const detail = proto.add_details();
    detail->set_type_url(std::string(type));
    detail->set_value(value);
  });
  first->PackFrom(info);
  return proto;
}

absl::Status FromProto(const google::rpc::Status& proto) {
  absl::Status status(static_cast<absl::StatusCode>(proto.code()), proto.message());
  for (const google::protobuf::Any& detail : proto.details()) {
    google::rpc::ErrorInfo info;
    if (!detail.UnpackTo(&info)) {
      status.SetPayload(detail.type_url(), absl::Cord(detail.value()));
      continue;
    }
    status.SetPayload(kReasonType, absl::Cord(info.reason()));
    for (const auto& [key, value] : info.metadata()) {
      status.SetPayload(absl::StrCat(kMetadataType, key), absl::Cord(value));
    }
  }
  return status;
}

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const google::rpc::Status proto = ToProto(status);
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), proto.message(),
                      proto.SerializeAsString());
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  google::rpc::Status proto;
  if (!status.error_details().empty() && proto.ParseFromString(status.error_details())) {
    return FromProto(proto);
  }
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  if (!status.error_message().empty()) return absl::Status(code, status.error_message());
  // gRPC gives no message with UNIMPLEMENTED.
  if (code == absl::StatusCode::kUnimplemented) {
    return absl::Status(code, "what answers at this address does not know the call: is it another service?");
  }
  return absl::Status(code,
                      absl::StrCat("the call ended without a reason: ", absl::StatusCodeToString(code)));
}

}  // namespace outrider
