// What the draft works on while the target verifies: proposals for outcomes that are likely.
//
// A branch is a sequence of its own on the draft. It begins as a copy of the generation's, with the tokens
// that are assumed to be committed, so that its proposal and q are those that a request after the verdict
// would get. It is used if exactly these tokens were committed: then it takes the place of the generation's
// sequence there. All others are released.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coordinator/decode/drafter.h"
#include "coordinator/decode/remote_sequence.h"
#include "coordinator/generation/generation.h"
#include "coordinator/servers/link.h"

namespace outrider {

struct Branch {
  std::string sequence_id;
  RemoteSequence remote;
  size_t accepted = 0;           // drafted tokens that are assumed to stand
  std::optional<TokenId> token;  // that is assumed to follow them; unset until the draft has drawn it
  bool draws_first = false;      // the draft draws that token
  size_t n = 0;                  // tokens that are then committed
  int k = 0;                     // tokens that were asked for
  std::unique_ptr<DraftLink::Call> call;
};

// Of one generation. Executor thread.
class Branches {
 public:
  // Where a generation's branches begin: its sequence on the draft, as it is after a proposal.
  struct Origin {
    std::shared_ptr<DraftLink> link;
    const std::string& sequence_id;
    const RemoteSequence& remote;
  };

  // Begins one for each outcome that the draft has the context for. Any that were left are dropped.
  void Begin(const Origin& origin, Generation& generation, const Proposal& proposal,
             std::span<const Outcome> outcomes);

  // The branch that foresaw the verdict, unless the draft has refused it; it belongs to the caller. The
  // others are dropped.
  std::optional<Branch> TakeHit(const Verdict& verdict);

  // Releases all.
  void Drop();

  size_t size() const { return branches_.size(); }
  // Tokens that the draft had reported of branches that TakeHit dropped.
  size_t wasted_tokens() const { return wasted_tokens_; }
  // The connection went down under a branch.
  bool lost() const;

 private:
  std::shared_ptr<DraftLink> link_;
  std::vector<std::unique_ptr<Branch>> branches_;
  // Of the branches that were dropped last: their answers may be on the way, and are no surprise.
  std::vector<std::unique_ptr<DraftLink::Call>> dropped_;
  size_t wasted_tokens_ = 0;
};

// K that the draft can give after n tokens, of `wanted`; negative if the sequence fills its context.
int AllowedLength(const v1::ServerInfo& draft, size_t n, int wanted);

// Writes into an item what it asks for: k tokens, and when to end before that.
void FillRequest(const DraftLength& length, int k, v1::ProposeItem* propose);

}  // namespace outrider
