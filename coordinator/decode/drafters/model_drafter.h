// The drafter that asks the draft service, also for likely outcomes while the target verifies.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/rpc/fresh_bits.h"
#include "coordinator/decode/drafter.h"
#include "coordinator/decode/metrics.h"
#include "coordinator/decode/remote_sequence.h"
#include "coordinator/generation/generation.h"
#include "coordinator/servers/link.h"
#include "coordinator/servers/server_pool.h"
#include "outrider/v1/sequence.pb.h"

namespace outrider {

// A proposal for a likely outcome, which the draft works on while the target verifies.
//
// A branch is a sequence of its own on the draft. It begins as a copy of the generation's, with the tokens
// assumed to be committed, so its proposal and q are those that a request after the verdict would get. If
// exactly these tokens are committed, it replaces the generation's sequence. Other branches are released.
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
  // Drops earlier branches, then begins one for each outcome that fits into the draft's context. They begin
  // as copies of the generation's sequence after `proposal`. The draft behind `link` knows this sequence as
  // `sequence_id`, and holds as much of it as `remote` says.
  void Begin(const std::shared_ptr<DraftLink>& link, const std::string& sequence_id,
             const RemoteSequence& remote, Generation& generation, const Proposal& proposal,
             std::span<const Outcome> outcomes);

  // Returns the branch that foresaw the verdict, unless it was refused. Drops the others.
  std::optional<Branch> TakeHit(const Verdict& verdict);

  void Drop();

  size_t size() const { return branches_.size(); }
  // Tokens that the draft had reported for the branches that TakeHit dropped.
  size_t wasted_tokens() const { return wasted_tokens_; }
  // Whether the connection went down while a branch was in flight.
  bool lost() const;

 private:
  std::shared_ptr<DraftLink> link_;
  std::vector<std::unique_ptr<Branch>> branches_;
  // The calls of the branches dropped last. Late answers to them are expected.
  std::vector<std::unique_ptr<DraftLink::Call>> dropped_;
  size_t wasted_tokens_ = 0;
};

class ModelDrafter final : public Drafter {
 public:
  // Whether it is a request's first or only draft, or the second of two (PairedDrafter), which draws with
  // random numbers of its own and has a sequence of its own, even where one server is both drafts.
  enum class Place { kFirst, kSecond };

  // The draft answers within `budget` with the tokens that it has by then. If it does not, the next round
  // asks another draft of the pool. `vocab` is the size of the target's vocabulary.
  ModelDrafter(Generation* generation, DraftPool* pool, Metrics* metrics, Clock::duration budget, int vocab,
               Fork fork, Place place = Place::kFirst)
      : Drafter(generation),
        place_(place),
        sequence_id_(place == Place::kFirst ? generation->sequence_id() : NewSequenceId()),
        pin_(pool),
        metrics_(metrics),
        budget_(budget),
        vocab_(vocab),
        remote_(std::move(fork)) {}

  void Begin(const DraftLength& length) override {
    wanted_ = length;
    attempts_ = 0;
    status_ = DraftStatus::kUsable;
    ahead_ = {};
    // Until an item that is in flight is answered, nobody knows what the draft holds.
    if (!in_flight_) Send();
  }
  asio::awaitable<Proposal> Take(v1::ItemTiming* timing) override;
  void RunAhead(const Proposal& proposal, std::span<const Outcome> outcomes) override {
    if (stopped_ || !may_run_ahead_ || in_flight_ || losses_.suspect()) return;
    const std::shared_ptr<DraftLink>& link = pin_.server()->link;
    if (link->up()) branches_.Begin(link, pin_.sequence_id(), remote_, *generation_, proposal, outcomes);
  }
  void OnVerdict(size_t n, const Verdict& verdict) override;
  AheadReport ahead() const override { return ahead_; }
  v1::DrafterKind kind() const override { return v1::DRAFTER_KIND_MODEL; }
  DraftStatus status() const override { return status_; }
  void Stop() override {
    stopped_ = true;
    if (in_flight_) in_flight_->call->Cancel();
    branches_.Drop();
    pin_.Release();
  }

 private:
  // An item whose answer has not been taken.
  struct InFlight {
    std::shared_ptr<DraftPool::Server> server;  // the one that the other members belong to
    std::unique_ptr<CircuitBreaker::Permit> permit;
    std::unique_ptr<TurnQueue::Turn> turn;  // if it is a suspect (LossCount), else null
    std::unique_ptr<DraftLink::Call> call;
    Clock::time_point deadline;
    size_t n = 0;             // committed tokens that it knew of
    int k = 0;                // the depth asked for
    int nodes = 0;            // the nodes asked for
    bool is_ahead = false;    // it was a branch
    bool drew_first = false;  // the draft had to draw the branch's last token
  };

  // Sends the tokens that the draft lacks, as a new round that asks for wanted_. Returns false, with nothing
  // in flight, if there is nothing to ask for or no draft to ask.
  bool Send();
  // Makes an item that may be sent, without its call. Nullopt, with status_ set, if no draft can be asked.
  std::optional<InFlight> Prepare();
  // Converts the proposal, a chain or a tree. An error if it is empty, or larger than `item` allows.
  absl::StatusOr<Proposal> Parse(const v1::ProposeResult& result, const InFlight& item) const;
  // Continues the generation on a branch whose outcome has come.
  void Adopt(Branch branch);
  // Handles an answer that is an error. Returns whether to ask again at once.
  bool OnRefusal(const InFlight& item, const DraftLink::Answer& answer);

  const Place place_;
  const std::string sequence_id_;  // on the first server
  DraftPool::Pin pin_;
  Metrics* const metrics_;
  const Clock::duration budget_;
  const int vocab_;
  uint32_t unfit_vocab_ = 0;  // size of the vocabulary of a draft that cannot propose for this sequence
  RemoteSequence remote_;
  Branches branches_;
  bool may_run_ahead_ = true;
  AheadReport ahead_;
  DraftLength wanted_;  // of the proposal that was begun
  int attempts_ = 0;    // items sent for it
  std::optional<InFlight> in_flight_;
  DraftStatus status_ = DraftStatus::kUsable;
  LossCount losses_;
  // The pause before a draft that had no room for this sequence is asked again.
  Backoff full_pause_{std::chrono::milliseconds(20), std::chrono::seconds(1)};
  Clock::time_point not_before_{};
  bool stopped_ = false;  // nobody would release what is sent now
};

// For drafts whose vocabulary differs in size from the target's: some families pad it differently in each
// model, though the ids that texts are made of are the same. Rewrites an update made for the target so that a
// draft with `draft_vocab` tokens takes it: removes from the parameters the ids that the draft lacks, and
// forbids those that the target lacks, so that their q is 0. Returns false, with the update half rewritten,
// if the draft cannot propose: it lacks a token of the sequence, or all tokens that the parameters allow.
bool FitVocabulary(int draft_vocab, int target_vocab, v1::SequenceUpdate& update);

}  // namespace outrider
