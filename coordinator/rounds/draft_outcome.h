// What came of asking for a proposal.
#pragma once

namespace outrider {

enum class DraftOutcome {
  kUsable,  // a proposal, or there was nothing to propose
  kFailed,  // the draft was asked, and what came was late, empty, an error, or not to the target's liking
  kAway,    // the draft cannot be asked: it is down, or has failed so often that it is left alone
};

}  // namespace outrider
