// How the state of a generation is written into an item.
#pragma once

#include "coordinator/rounds/generation.h"
#include "coordinator/rounds/remote_sequence.h"
#include "outrider/v1/sequence.pb.h"

namespace outrider {

// The committed tokens up to `end` that `remote` lacks, as round `round` of the sequence that is known there
// by `sequence_id`. `end` <= generation.size().
inline void FillUpdate(const Generation& generation, const std::string& sequence_id,
                       const RemoteSequence& remote, uint64_t round, size_t end, v1::SequenceUpdate* update) {
  const uint32_t base = remote.Base(end);
  update->set_sequence_id(sequence_id);
  update->set_round(round);
  update->set_base(base);
  update->mutable_tokens()->Add(generation.tokens().begin() + base, generation.tokens().begin() + end);
  update->set_prefix_hash(generation.prefix_hash(base));
  update->set_fork_of(remote.fork_of());
  update->set_params_hash(generation.params_hash());
  if (base > 0 && remote.params_known()) return;
  *update->mutable_params() = generation.request().params;
  *update->mutable_context() = generation.request().context;
}

}  // namespace outrider
