// Between the messages of the protocol and the items of the engine's worker.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/engine/worker.h"
#include "common/rpc/sampling.h"
#include "outrider/v1/sequence.pb.h"

namespace outrider {

// 16 bytes to an id; INVALID_ARGUMENT, reason SEQUENCE_ID_INVALID, for another length.
absl::StatusOr<SequenceId> ParseSequenceId(const std::string& bytes);
std::string SerializeSequenceId(const SequenceId& id);

// OK, or INVALID_ARGUMENT naming `field`, for a number of alternatives.
absl::Status CheckTopLogprobs(absl::string_view field, uint32_t top);

// What all items have in common: everything but the draft, K and `answer`. `default_top_n` stands for
// draft_top_n 0. INVALID_ARGUMENT with the field's name if something is out of range for the vocabulary.
absl::StatusOr<WorkItem> ParseUpdate(const v1::SequenceUpdate& update, int vocab_size, int default_top_n);

v1::PositionLogprobs ToProto(const PositionLogProbabilities& position);
v1::ItemTiming ToProto(const WorkTiming& timing);

}  // namespace outrider
