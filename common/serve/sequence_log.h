// A line in the log that joins a sequence here with the request that it belongs to.
#pragma once

#include "absl/strings/escaping.h"
#include "common/obs/log.h"
#include "outrider/v1/sequence.pb.h"

namespace outrider {

// At level debug, when a sequence's parameters come: so at its begin, and when it was lost here.
inline void LogSequence(const v1::SequenceUpdate& update) {
  if (!update.has_context() || !LogEnabled(LogLevel::kDebug)) return;
  LogDebug("sequence", {{"request_id", update.context().request_id()},
                        {"traceparent", update.context().traceparent()},
                        {"sequence", absl::BytesToHexString(update.sequence_id())},
                        {"base", update.base()},
                        {"tokens", update.tokens_size()}});
}

}  // namespace outrider
