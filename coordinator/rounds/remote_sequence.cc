#include "coordinator/rounds/remote_sequence.h"

#include "common/spec/status.h"

namespace outrider {

Remedy RemoteSequence::OnRefusal(const absl::Status& status, size_t cached) {
  switch (status.code()) {
    case absl::StatusCode::kFailedPrecondition: {
      const std::string reason = ReasonOf(status);
      if (reason == "PARAMS_UNKNOWN") {
        params_known_ = false;
      } else if (reason == "PREFIX_MISMATCH") {
        agreed_ = 0;
      } else {
        OnHolds(cached);
      }
      return Remedy::kResend;
    }
    case absl::StatusCode::kNotFound:
      Forget();
      return Remedy::kResend;
    case absl::StatusCode::kResourceExhausted:
      OnHolds(cached);
      return Remedy::kWait;
    default:
      return Remedy::kNone;
  }
}

}  // namespace outrider
