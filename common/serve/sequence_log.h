// The log event that connects a sequence with its request.
#pragma once

#include "absl/strings/escaping.h"
#include "common/obs/log.h"
#include "outrider/v1/sequence.pb.h"

namespace outrider {

// Logs, at level debug, an update that carries the request's context. That is the first one of a sequence,
// and the first one after the server lost it.
inline void LogSequence(const v1::SequenceUpdate& update) {
  if (!update.has_context() || !LogEnabled(LogLevel::kDebug)) return;
  LogDebug("sequence", {{"request_id", update.context().request_id()},
                        {"traceparent", update.context().traceparent()},
                        {"sequence", absl::BytesToHexString(update.sequence_id())},
                        {"base", update.base()},
                        {"tokens", update.tokens_size()}});
}

}  // namespace outrider
