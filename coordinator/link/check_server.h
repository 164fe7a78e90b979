// Which servers a coordinator works with.
#pragma once

#include "absl/status/status.h"
#include "common/text/tokenizer.h"
#include "outrider/v1/sequence.pb.h"

namespace outrider {

// Whether a server's model reads and writes the tokens that `tokenizer` does. FAILED_PRECONDITION, as of the
// other two, in words for an operator.
absl::Status CheckFingerprint(const v1::ServerInfo& info, const Tokenizer& tokenizer);

// Whether draft and target can speak of the same tokens, given that each passes CheckFingerprint. Their
// vocabularies may have different sizes. OK while there is no target, null, to compare with.
absl::Status CheckPair(const v1::ServerInfo& draft, const v1::ServerInfo* target);

// Whether a target that comes back is the one that was there before, null if none was: the tokens of a
// request are from one model. (A draft may change: with its q, its proposals are as good as any.)
absl::Status CheckReturn(const v1::ServerInfo& info, const v1::ServerInfo* before);

}  // namespace outrider
