#include "coordinator/decode/drafters/branches.h"

#include <algorithm>
#include <utility>

#include "common/kv/prefix_hash.h"
#include "common/rpc/convert.h"
#include "common/rpc/fresh_bits.h"
#include "coordinator/policy/acceptance.h"

namespace outrider {
namespace {

// The tokens that are committed if an outcome comes, without the one that is still to be drawn.
class AssumedTokens {
 public:
  AssumedTokens(const Generation& generation, const Proposal& proposal, const Outcome& outcome)
      : generation_(generation) {
    for (size_t i = 0; i < outcome.accepted; ++i) assumed_.push_back(proposal[i].token);
    if (outcome.token) assumed_.push_back(*outcome.token);
  }

  size_t size() const { return generation_.size() + assumed_.size(); }
  size_t assumed() const { return assumed_.size(); }
  TokenId operator[](size_t i) const {
    return i < generation_.size() ? generation_.tokens()[i] : assumed_[i - generation_.size()];
  }
  uint64_t prefix_hash(size_t n) const {
    uint64_t hash = generation_.prefix_hash(std::min(n, generation_.size()));
    for (size_t i = generation_.size(); i < n; ++i) hash = ExtendPrefixHash(hash, (*this)[i]);
    return hash;
  }

 private:
  const Generation& generation_;
  std::vector<TokenId> assumed_;
};

void FillUpdate(const AssumedTokens& tokens, const Generation& generation, const Branch& branch,
                uint64_t round, v1::SequenceUpdate* update) {
  const uint32_t base = branch.remote.Base(tokens.size());
  update->set_sequence_id(branch.sequence_id);
  update->set_round(round);
  update->set_base(base);
  for (size_t i = base; i < tokens.size(); ++i) update->add_tokens(static_cast<uint32_t>(tokens[i]));
  update->set_prefix_hash(tokens.prefix_hash(base));
  update->set_fork_of(branch.remote.fork_of());
  // Those of the sequence that it is a copy of.
  update->set_params_hash(generation.params_hash());
}

}  // namespace

void Branches::Begin(const Origin& origin, Generation& generation, const Proposal& proposal,
                     std::span<const Outcome> outcomes) {
  Drop();
  link_ = origin.link;
  for (const Outcome& outcome : outcomes) {
    const AssumedTokens tokens(generation, proposal, outcome);
    const size_t n = generation.size() + outcome.accepted + 1;
    const int k = AllowedLength(*link_->info(), n, outcome.length.most);
    if (k <= 0) continue;
    auto branch =
        std::make_unique<Branch>(Branch{.sequence_id = NewSequenceId(),
                                        .remote = RemoteSequence(origin.remote.Branch(
                                            origin.sequence_id, generation.size() + outcome.accepted)),
                                        .accepted = outcome.accepted,
                                        .token = outcome.token,
                                        .draws_first = !outcome.token,
                                        .n = n,
                                        .k = k,
                                        .call = nullptr});
    branch->remote.OnServer(link_->info()->boot_id());
    const uint64_t round = generation.NextRound();
    v1::DraftItem message;
    v1::ProposeItem* propose = message.mutable_propose();
    FillUpdate(tokens, generation, *branch, round, propose->mutable_sequence());
    propose->set_assumed_tokens(static_cast<uint32_t>(tokens.assumed()));
    propose->set_draw_next(!outcome.token);
    FillRequest(outcome.length, k, propose);
    branch->call = link_->Start(std::move(message), branch->sequence_id, round);
    branch->call->OnPartial([branch = branch.get()](const v1::ProposeResult& result) {
      if (result.has_next()) branch->token = static_cast<TokenId>(result.next().token());
    });
    branches_.push_back(std::move(branch));
  }
}

std::optional<Branch> Branches::TakeHit(const Verdict& verdict) {
  const auto hit = std::find_if(branches_.begin(), branches_.end(), [&](const auto& branch) {
    const DraftLink::Answer* answer = branch->call->answer();
    return branch->accepted == verdict.path.size() && branch->token == verdict.token &&
           (answer == nullptr || answer->status.ok());
  });
  std::optional<Branch> taken;
  if (hit != branches_.end()) {
    // A token that is drawn in advance is drawn once.
    (*hit)->call->OnPartial(nullptr);
    taken = std::move(**hit);
    branches_.erase(hit);
  }
  wasted_tokens_ = 0;
  for (const auto& branch : branches_) {
    const DraftLink::Answer* answer = branch->call->answer();
    if (answer != nullptr) wasted_tokens_ += static_cast<size_t>(answer->result.nodes_size());
  }
  Drop();
  return taken;
}

bool Branches::lost() const {
  return std::any_of(branches_.begin(), branches_.end(), [](const auto& branch) {
    return branch->call->answer() != nullptr && branch->call->answer()->lost;
  });
}

void Branches::Drop() {
  // Answers to the branches dropped last may still be on the way.
  if (branches_.empty()) return;
  dropped_.clear();
  for (const auto& branch : branches_) {
    link_->PostRelease(branch->sequence_id);
    branch->call->OnPartial(nullptr);
    branch->call->Cancel();  // the draft owes no answer any more
    dropped_.push_back(std::move(branch->call));
  }
  branches_.clear();
}

int AllowedLength(const v1::ServerInfo& draft, size_t n, int wanted) {
  const auto room = static_cast<int64_t>(draft.max_context()) - static_cast<int64_t>(n);
  if (room <= 0) return -1;
  return static_cast<int>(std::min({int64_t{wanted}, room, int64_t{draft.max_draft_tokens()}}));
}

void FillRequest(const DraftLength& length, int k, v1::ProposeItem* propose) {
  propose->set_draft_tokens(static_cast<uint32_t>(k));
  if (length.ahead) propose->set_alternatives(kRanks);
  if (length.tree) *propose->mutable_tree() = SerializeShape(*length.tree);
  if (!length.stop) return;
  v1::DraftStop* stop = propose->mutable_stop();
  stop->mutable_acceptance()->Add(length.stop->acceptance.begin(), length.stop->acceptance.end());
  stop->set_least(length.stop->least);
}

}  // namespace outrider
