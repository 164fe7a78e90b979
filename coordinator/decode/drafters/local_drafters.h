// Drafters that need only committed tokens, or that leave the work to the target or to two others in turn.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/spec/types.h"
#include "coordinator/decode/drafter.h"
#include "coordinator/decode/drafters/suffix_automaton.h"

namespace outrider {

// A drafter that needs only the committed tokens.
class LocalDrafter : public Drafter {
 public:
  using Drafter::Drafter;

  virtual Proposal Draft(int k) = 0;

  void Begin(const DraftLength& length) final { k_ = length.most; }
  asio::awaitable<Proposal> Take(v1::ItemTiming* timing) final {
    const Clock::time_point start = Clock::now();
    Proposal proposal = Draft(k_);
    const auto took = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start);
    timing->set_compute_us(static_cast<uint32_t>(took.count()));
    co_return proposal;
  }
  bool MayPropose() final { return !Draft(1).empty(); }

 private:
  int k_ = 0;
};

// Adds a token that was not drawn: q is a point mass, or absent if the rule takes no q.
inline void AppendUndrawn(TokenId token, v1::Rule rule, Proposal& chain) {
  Distribution q;
  if (rule != v1::RULE_COUPLED) q = {.form = Distribution::Form::kPointMass, .ids = {token}, .total = 1};
  AppendToChain(token, std::move(q), chain);
}

// Counts which tokens follow each context of 1 to max_context tokens of one text. Adds at most max_context
// entries for each token of the text. Not synchronised.
class NgramTable {
 public:
  static constexpr int kMaxContext = 3;

  // max_context in [1, kMaxContext].
  explicit NgramTable(int max_context) : max_context_(max_context) {}

  void Append(TokenId token);

  // Returns the token that most often follows the end of `tokens`; ties go to the most recent. The longest
  // context that occurs decides; nullopt if it has fewer than min_context tokens.
  std::optional<TokenId> Next(std::span<const TokenId> tokens, int min_context = 1) const;

  // Returns the distribution, prepared, of the token that follows the longest context that occurs, smoothed
  // with the shorter contexts as by Witten and Bell (IEEE Transactions on Information Theory 37(4), 1991,
  // method C). Only the kMostLikely likeliest tokens of each context count, and at most kMostLikely are
  // returned. kAbsent where Next returns nullopt.
  static constexpr size_t kMostLikely = 32;
  Distribution Law(std::span<const TokenId> tokens, int min_context = 1) const;

  // The number of counted pairs of context and continuation.
  size_t size() const { return size_; }

 private:
  using Context = std::array<TokenId, kMaxContext>;  // shorter contexts begin with -1
  struct Continuation {
    TokenId token = 0;
    int count = 0;
    uint64_t last = 0;  // when it was last counted

    auto rank() const { return std::pair(count, last); }
  };
  // The tokens that followed a context. All are counted, but only the likeliest are searched, so that a text
  // in which thousands of tokens follow one context costs no more than any other.
  struct Continuations {
    std::vector<Continuation> likeliest;  // kMostLikely at most
    int tokens = 0;                       // how many tokens followed
    int distinct = 0;                     // how many different tokens followed
  };

  static Context Last(std::span<const TokenId> tokens, int length) {
    Context context;
    context.fill(-1);
    std::copy(tokens.end() - length, tokens.end(), context.end() - length);
    return context;
  }
  void Count(const Context& context, TokenId token);
  // The tokens that follow the last `length` tokens; null if these do not occur.
  const Continuations* Find(std::span<const TokenId> tokens, int length) const {
    const auto entry = continuations_.find(Last(tokens, length));
    return entry == continuations_.end() ? nullptr : &entry->second;
  }

  const int max_context_;
  std::vector<TokenId> last_;  // the last tokens, at most max_context_
  uint64_t appended_ = 0;
  size_t size_ = 0;
  absl::flat_hash_map<Context, Continuations> continuations_;
  absl::flat_hash_map<std::pair<Context, TokenId>, int> unlikely_;  // counts of those not among the likeliest
};

// Drafts the tokens that followed the most recent earlier occurrence of the longest suffix that repeats, at
// most as many as that suffix has: the longer a text has been copied, the likelier it goes on. A request's
// prediction is placed between prompt and answer, and the answer is first drafted to begin like it.
class CopyDrafter final : public LocalDrafter {
 public:
  using LocalDrafter::LocalDrafter;

  // A copy that reaches the end of the text continues with its own tokens.
  Proposal Draft(int k) override;
  v1::DrafterKind kind() const override { return v1::DRAFTER_KIND_COPY; }
  size_t predicted() const override { return predicted_; }

 private:
  // The tokens that can be copied: how many there are, and the one at an index.
  size_t TextSize() const;
  TokenId TextAt(size_t index) const;

  SuffixAutomaton known_;
  size_t predicted_ = 0;
};

struct NgramOptions {
  int max_context = NgramTable::kMaxContext;  // tokens of the longest context, in [1, kMaxContext]
  int min_context = 1;                        // a token that only shorter contexts suggest is not drafted
  int max_tokens = 4;                         // most tokens drafted in a round
};

// Drafts the token that most often followed the last tokens earlier in the sequence, prompt included. If the
// target samples and the rule compares q, draws from the distribution of the tokens that followed instead.
class NgramDrafter final : public LocalDrafter {
 public:
  NgramDrafter(Generation* generation, const NgramOptions& options)
      : LocalDrafter(generation), options_(options), table_(options.max_context) {}

  Proposal Draft(int k) override;
  v1::DrafterKind kind() const override { return v1::DRAFTER_KIND_NGRAM; }
  const NgramTable& table() const { return table_; }

 private:
  const NgramOptions options_;
  NgramTable table_;
  size_t counted_ = 0;  // committed tokens that the table has counted
};

// Hands out the proposal that the target made with its last verdict. Sends nothing itself: RoundLoop asks the
// target a round ahead. A generation therefore has no proposal in its first round.
class TargetDrafter final : public Drafter {
 public:
  // `kind` is one for which the target itself proposes, or NONE, for which no proposal ever comes.
  TargetDrafter(Generation* generation, v1::DrafterKind kind) : Drafter(generation), kind_(kind) {}

  void Begin(const DraftLength& length) override { most_ = length.most; }
  // Returns the proposal of OnProposal, cut to the wanted depth, if it follows exactly the committed tokens.
  asio::awaitable<Proposal> Take(v1::ItemTiming* timing) override;
  void OnProposal(size_t n, TargetProposal proposal) override {
    n_ = n;
    held_ = std::move(proposal);
  }
  v1::DrafterKind kind() const override { return kind_; }
  DraftStatus status() const override { return status_; }

 private:
  const v1::DrafterKind kind_;
  int most_ = 0;
  TargetProposal held_;
  size_t n_ = 0;  // committed tokens that held_ follows
  DraftStatus status_ = DraftStatus::kUsable;
};

// Asks one drafter, and a second if the first has nothing to propose. The committed tokens decide which of
// them proposes, as long as the first looks at nothing else.
//
// If the second is the target, its proposal comes with a verdict, before the first is asked, and is dropped
// if the first proposes. Its time still counts in the round. While the first keeps being right, as when the
// text copies itself, the target is not asked; the round that ends such a run is plain.
class AutoDrafter final : public Drafter {
 public:
  AutoDrafter(Generation* generation, std::unique_ptr<Drafter> first, std::unique_ptr<Drafter> second)
      : Drafter(generation), first_(std::move(first)), second_(std::move(second)) {}

  // Always asks the first drafter first. If nothing is wanted, only the second has something to do.
  void Begin(const DraftLength& length) override {
    if (length.most == 0) return second_->Begin(length);
    length_ = length;
    proposed_at_ = generation_->size();
    last_ = first_.get();
    first_->Begin(length);
  }
  asio::awaitable<Proposal> Take(v1::ItemTiming* timing) override;
  // Each drafter is told only about its own proposals.
  void RunAhead(const Proposal& proposal, std::span<const Outcome> outcomes) override {
    last_->RunAhead(proposal, outcomes);
  }
  void OnVerdict(size_t n, const Verdict& verdict) override {
    const bool was_asked = last_ != nullptr && n == proposed_at_;
    first_was_right_ = was_asked && last_ == first_.get() && verdict.path.size() == proposed_;
    if (was_asked) last_->OnVerdict(n, verdict);
  }
  // False if the first has just proposed, and its previous proposal was accepted as a whole.
  bool WantsTargetProposal() const override {
    return last_ == first_.get() ? !first_was_right_ : second_->WantsTargetProposal();
  }
  bool MayPropose() override { return first_->MayPropose() || second_->MayPropose(); }
  v1::DrafterKind NextKind() override {
    return first_->MayPropose() ? first_->NextKind() : second_->NextKind();
  }
  // Only the second may be the target.
  void OnProposal(size_t n, TargetProposal proposal) override {
    unused_ = proposal.timing;
    second_->OnProposal(n, std::move(proposal));
  }
  AheadReport ahead() const override { return last_ == nullptr ? AheadReport() : last_->ahead(); }
  size_t predicted() const override { return last_ == nullptr ? 0 : last_->predicted(); }
  v1::DrafterKind kind() const override { return last_ == nullptr ? v1::DRAFTER_KIND_AUTO : last_->kind(); }
  DraftStatus status() const override { return last_ == nullptr ? DraftStatus::kUsable : last_->status(); }
  void Stop() override {
    first_->Stop();
    second_->Stop();
  }

 private:
  const std::unique_ptr<Drafter> first_;
  const std::unique_ptr<Drafter> second_;
  DraftLength length_;            // of the proposal that was begun
  Drafter* last_ = nullptr;       // the drafter that was asked last
  size_t proposed_at_ = 0;        // committed tokens when it was asked
  size_t proposed_ = 0;           // tokens that the first proposed at that time
  bool first_was_right_ = false;  // the last round verified a proposal of the first, and accepted all of it
  v1::ItemTiming unused_;         // the time of the target's unused proposal
};

}  // namespace outrider
