// Drafts whose vocabulary has another size than the target's. Some families pad it differently in each model;
// the ids that a text is made of are the same.
#pragma once

#include "outrider/v1/sequence.pb.h"

namespace outrider {

// Rewrites an update that was made for the target so that a draft with `draft_vocab` tokens takes it: removes
// from its parameters the ids that the draft lacks, and forbids those that the target lacks, so that their q
// is 0. False, with the update half rewritten, if the draft cannot propose: it lacks a token of the sequence,
// or all that the parameters leave.
bool FitVocabulary(int draft_vocab, int target_vocab, v1::SequenceUpdate& update);

}  // namespace outrider
