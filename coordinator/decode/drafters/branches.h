// What the draft works on while the target verifies: proposals for likely outcomes.
//
// A branch is a sequence of its own on the draft. It begins as a copy of the generation's, with the tokens
// assumed to be committed, so its proposal and q are those that a request after the verdict would get. If
// exactly these tokens are committed, it replaces the generation's sequence there. All others are released.
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
  std::optional<TokenId> token;  // assumed to follow them; unset until the draft has drawn it
  bool draws_first = false;      // the draft draws that token
  size_t n = 0;                  // committed tokens in that case
  int k = 0;                     // tokens asked for
  std::unique_ptr<DraftLink::Call> call;
};

// The branches of one generation. Executor thread.
class Branches {
 public:
  // Where the branches begin: the generation's sequence on the draft, as it is after a proposal.
  struct Origin {
    std::shared_ptr<DraftLink> link;
    const std::string& sequence_id;
    const RemoteSequence& remote;
  };

  // Begins a branch for each outcome that the draft has the context for. Drops any that were left.
  void Begin(const Origin& origin, Generation& generation, const Proposal& proposal,
             std::span<const Outcome> outcomes);

  // Returns the branch that foresaw the verdict, unless the draft has refused it; the caller owns it. Drops
  // the others.
  std::optional<Branch> TakeHit(const Verdict& verdict);

  // Releases all branches.
  void Drop();

  size_t size() const { return branches_.size(); }
  // Tokens that the draft had reported for the branches that TakeHit dropped.
  size_t wasted_tokens() const { return wasted_tokens_; }
  // Whether the connection went down under a branch.
  bool lost() const;

 private:
  std::shared_ptr<DraftLink> link_;
  std::vector<std::unique_ptr<Branch>> branches_;
  // The calls of the branches dropped last: their answers may be on the way, and are expected.
  std::vector<std::unique_ptr<DraftLink::Call>> dropped_;
  size_t wasted_tokens_ = 0;
};

// The K that the draft can give after n tokens, at most `wanted`; negative if the sequence fills its context.
int AllowedLength(const v1::ServerInfo& draft, size_t n, int wanted);

// Writes the request into an item: k tokens, and when to stop before that.
void FillRequest(const DraftLength& length, int k, v1::ProposeItem* propose);

}  // namespace outrider
