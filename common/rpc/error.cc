#include "common/rpc/error.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "google/rpc/error_details.pb.h"

namespace outrider {
namespace {

constexpr absl::string_view kTypePrefix = "type.googleapis.com/";

template <class Detail>
std::string TypeUrl() {
  return absl::StrCat(kTypePrefix, std::string(Detail::descriptor()->full_name()));
}

template <class Detail>
void SetDetail(absl::Status& status, const Detail& detail) {
  status.SetPayload(TypeUrl<Detail>(), absl::Cord(detail.SerializeAsString()));
}

// The status' detail of that kind; an empty one if it has none.
template <class Detail>
Detail GetDetail(const absl::Status& status) {
  Detail detail;
  const auto payload = status.GetPayload(TypeUrl<Detail>());
  if (payload && !detail.ParseFromString(std::string(*payload))) detail.Clear();
  return detail;
}

google::rpc::ErrorInfo MakeInfo(absl::string_view reason) {
  google::rpc::ErrorInfo info;
  info.set_reason(std::string(reason));
  info.set_domain("outrider");
  return info;
}

}  // namespace

absl::Status MakeError(absl::StatusCode code, absl::string_view reason, absl::string_view message,
                       std::initializer_list<std::pair<absl::string_view, std::string>> metadata) {
  absl::Status status(code, message);
  google::rpc::ErrorInfo info = MakeInfo(reason);
  for (const auto& [key, value] : metadata) (*info.mutable_metadata())[std::string(key)] = value;
  SetDetail(status, info);
  return status;
}

absl::Status FieldError(absl::string_view field, absl::string_view range, absl::string_view problem) {
  return MakeError(absl::StatusCode::kInvalidArgument, "FIELD_INVALID",
                   absl::StrCat(field, ": ", problem, "; allowed: ", range),
                   {{"field", std::string(field)}, {"range", std::string(range)}});
}

absl::Status BusyError(absl::string_view reason, absl::string_view message, absl::Duration retry_after) {
  absl::Status status = MakeError(absl::StatusCode::kResourceExhausted, reason, message);
  google::rpc::RetryInfo retry;
  const absl::Duration whole = absl::Floor(retry_after, absl::Seconds(1));
  retry.mutable_retry_delay()->set_seconds(absl::ToInt64Seconds(whole));
  retry.mutable_retry_delay()->set_nanos(static_cast<int>(absl::ToInt64Nanoseconds(retry_after - whole)));
  SetDetail(status, retry);
  return status;
}

std::string ErrorReason(const absl::Status& status) {
  if (auto payload = status.GetPayload(TypeUrl<google::rpc::ErrorInfo>())) {
    google::rpc::ErrorInfo info;
    if (info.ParseFromString(std::string(*payload))) return info.reason();
  }
  const absl::string_view message = status.message();
  const size_t end = message.find_first_not_of("abcdefghijklmnopqrstuvwxyz_0123456789");
  const absl::string_view word = message.substr(0, end);
  const bool whole = end == absl::string_view::npos || message[end] == ':';
  if (!word.empty() && whole) return absl::AsciiStrToUpper(word);
  return absl::StatusCodeToString(status.code());
}

std::string ErrorMetadata(const absl::Status& status, const std::string& key) {
  const auto info = GetDetail<google::rpc::ErrorInfo>(status);
  const auto found = info.metadata().find(key);
  return found == info.metadata().end() ? "" : found->second;
}

absl::Duration RetryDelay(const absl::Status& status) {
  const auto retry = GetDetail<google::rpc::RetryInfo>(status);
  return absl::Seconds(retry.retry_delay().seconds()) + absl::Nanoseconds(retry.retry_delay().nanos());
}

google::rpc::Status ToProto(const absl::Status& status) {
  google::rpc::Status proto;
  proto.set_code(static_cast<int>(status.code()));
  proto.set_message(std::string(status.message()));
  bool has_info = false;
  const std::string info_url = TypeUrl<google::rpc::ErrorInfo>();
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    has_info |= url == info_url;
    google::protobuf::Any* detail = proto.add_details();
    detail->set_type_url(std::string(url));
    detail->set_value(std::string(payload));
  });
  if (!has_info && !status.ok()) {
    proto.add_details()->PackFrom(MakeInfo(ErrorReason(status)));
  }
  return proto;
}

absl::Status FromProto(const google::rpc::Status& proto) {
  absl::Status status(static_cast<absl::StatusCode>(proto.code()), proto.message());
  for (const google::protobuf::Any& detail : proto.details()) {
    status.SetPayload(detail.type_url(), absl::Cord(detail.value()));
  }
  return status;
}

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()),
                      ToProto(status).SerializeAsString());
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  google::rpc::Status proto;
  if (!status.error_details().empty() && proto.ParseFromString(status.error_details())) {
    return FromProto(proto);
  }
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace outrider
