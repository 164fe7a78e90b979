// Converts between the protocol's messages and the engine's work items, for the parts that draft and target
// have in common.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/engine/work_item.h"
#include "common/rpc/convert.h"
#include "google/rpc/status.pb.h"
#include "outrider/v1/sequence.pb.h"

namespace outrider {

// Parses 16 bytes. INVALID_ARGUMENT, reason SEQUENCE_ID_INVALID, for another length.
absl::StatusOr<SequenceId> ParseSequenceId(const std::string& bytes);

// INVALID_ARGUMENT, naming `field`, if `top` is more alternatives than are allowed.
absl::Status CheckTopLogprobs(absl::string_view field, uint32_t top);

// Parses what all items have in common: everything but `work` and `answer`. `default_top_n` replaces a
// draft_top_n of 0. INVALID_ARGUMENT if the sequence id is invalid; any other problem is put into `invalid`
// of the item, so that it can be answered.
absl::StatusOr<WorkItem> ParseUpdate(const v1::SequenceUpdate& update, int vocab_size, int default_top_n);

// The time by which an item with this budget must be answered; infinite if the budget is 0 or absent.
absl::Time DeadlineOf(const google::protobuf::Duration& budget);

// An item's error. A temporary one (RESOURCE_EXHAUSTED, UNAVAILABLE) says when to try again.
google::rpc::Status ItemError(const absl::Status& status);

v1::PositionLogprobs ToProto(const PositionLogProbabilities& position);
v1::ItemTiming ToProto(const WorkTiming& timing);

}  // namespace outrider
