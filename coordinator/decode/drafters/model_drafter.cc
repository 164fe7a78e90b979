#include "coordinator/decode/drafters/model_drafter.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "common/rpc/convert.h"
#include "common/spec/status.h"
#include "coordinator/policy/measured_rounds.h"

namespace outrider {
namespace {

// Added to the budget for the way back. A later answer is not waited for, since the draft may hang.
constexpr auto kAnswerGrace = std::chrono::milliseconds(50);
// Added to the budget for each token that is new to the draft.
constexpr auto kBudgetPerToken = std::chrono::microseconds(500);

constexpr int kMaxAttempts = 3;  // the most items sent for one proposal

void SetBudget(Clock::duration allowed, google::protobuf::Duration* budget) {
  const int64_t nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(allowed).count();
  budget->set_seconds(nanoseconds / 1'000'000'000);
  budget->set_nanos(static_cast<int>(nanoseconds % 1'000'000'000));
}

bool FitParams(int draft_vocab, int target_vocab, v1::SequenceParams& params) {
  v1::SamplingParams& sampling = *params.mutable_sampling();
  const auto drop_beyond = [draft_vocab](auto& list, auto id_of) {
    const auto is_beyond = [&](const auto& each) {
      return id_of(each) >= static_cast<uint32_t>(draft_vocab);
    };
    list.erase(std::remove_if(list.begin(), list.end(), is_beyond), list.end());
  };
  const auto itself = [](uint32_t id) { return id; };
  const bool had_allowed = !sampling.allowed_ids().empty();
  drop_beyond(*sampling.mutable_allowed_ids(), itself);
  // An empty list of allowed ids would allow all.
  if (had_allowed && sampling.allowed_ids().empty()) return false;
  drop_beyond(*sampling.mutable_bad_ids(), itself);
  drop_beyond(*params.mutable_end_ids(), itself);
  drop_beyond(*sampling.mutable_logit_bias(), [](const v1::LogitBias& bias) { return bias.token(); });
  for (int id = target_vocab; id < draft_vocab; ++id) sampling.add_bad_ids(static_cast<uint32_t>(id));
  return ValidateSamplingParams(ParseSampling(sampling, params.end_ids()), draft_vocab).ok();
}

// Gives a sequence other random numbers than the generation's, so that its tokens are drawn independently.
// The coupled rule compares no distributions, and has the most tokens accepted if all use the same numbers.
void DrawOtherwise(v1::SequenceUpdate& update) {
  update.set_params_hash(~update.params_hash());
  if (!update.has_params() || update.params().rule() == v1::RULE_COUPLED) return;
  update.mutable_params()->set_sample_index(~update.params().sample_index());
}

// The K that the draft can give after n tokens, at most `wanted`; negative if the sequence fills its context.
int AllowedLength(const v1::ServerInfo& draft, size_t n, int wanted) {
  const auto room = static_cast<int64_t>(draft.max_context()) - static_cast<int64_t>(n);
  if (room <= 0) return -1;
  return static_cast<int>(std::min({int64_t{wanted}, room, int64_t{draft.max_draft_tokens()}}));
}

// Writes the request into an item: k tokens, in which shape, and when to stop early.
void FillRequest(const DraftLength& length, int k, v1::ProposeItem* propose) {
  propose->set_draft_tokens(static_cast<uint32_t>(k));
  if (length.ahead) propose->set_alternatives(kRanks);
  if (length.tree) *propose->mutable_tree() = SerializeShape(*length.tree);
  if (!length.stop) return;
  v1::DraftStop* stop = propose->mutable_stop();
  stop->mutable_acceptance()->Add(length.stop->acceptance.begin(), length.stop->acceptance.end());
  stop->set_least(length.stop->least);
}

// The status of a round once no draft can be asked. An earlier failure is worse news.
DraftStatus StatusWhenAway(DraftStatus before) {
  return before == DraftStatus::kFailed ? before : DraftStatus::kAway;
}

}  // namespace

void Branches::Begin(const std::shared_ptr<DraftLink>& link, const std::string& sequence_id,
                     const RemoteSequence& remote, Generation& generation, const Proposal& proposal,
                     std::span<const Outcome> outcomes) {
  Drop();
  link_ = link;
  for (const Outcome& outcome : outcomes) {
    const size_t n = generation.size() + outcome.accepted + 1;
    const int k = AllowedLength(*link_->info(), n, outcome.length.most);
    if (k <= 0) continue;
    // The tokens that are committed if the outcome comes, except one that is still to be drawn.
    std::vector<TokenId> assumed;
    for (size_t i = 0; i < outcome.accepted; ++i) assumed.push_back(proposal[i].token);
    if (outcome.token) assumed.push_back(*outcome.token);
    auto branch = std::make_unique<Branch>(
        Branch{.sequence_id = NewSequenceId(),
               .remote = RemoteSequence(remote.Branch(sequence_id, generation.size() + outcome.accepted)),
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
    FillUpdate(generation, assumed, branch->sequence_id, branch->remote, round,
               generation.size() + assumed.size(), propose->mutable_sequence());
    propose->set_assumed_tokens(static_cast<uint32_t>(assumed.size()));
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
  const auto hit = std::ranges::find_if(branches_, [&](const auto& branch) {
    const DraftLink::Answer* answer = branch->call->answer();
    return branch->accepted == verdict.path.size() && branch->token == verdict.token &&
           (answer == nullptr || answer->status.ok());
  });
  std::optional<Branch> taken;
  if (hit != branches_.end()) {
    // The handler refers to *hit, which goes away. It is done: the token is known, and is drawn only once.
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
  return std::ranges::any_of(branches_, [](const auto& branch) {
    return branch->call->answer() != nullptr && branch->call->answer()->lost;
  });
}

void Branches::Drop() {
  // Keeps dropped_: answers to those branches may still be on the way.
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

bool ModelDrafter::Send() {
  // None of these is the draft's failure: only this sequence is not drafted for.
  if (stopped_ || attempts_ == kMaxAttempts || losses_.must_give_up() || Clock::now() < not_before_)
    return false;
  if (!pin_.Settle(sequence_id_, generation_->request().prompt, remote_.fork_of())) {
    status_ = StatusWhenAway(status_);
    return false;
  }
  const v1::ServerInfo& draft = *pin_.server()->link->info();
  const size_t n = generation_->size();
  const int wanted = wanted_.most;
  const int k = AllowedLength(draft, n, wanted);
  if (k < 0 || (k == 0 && wanted > 0) || draft.vocab_size() == unfit_vocab_) return false;
  std::optional<InFlight> item = Prepare();
  if (!item) return false;
  ++attempts_;
  remote_.OnServer(draft.boot_id());
  const uint64_t round = generation_->NextRound();
  v1::DraftItem message;
  v1::ProposeItem* propose = message.mutable_propose();
  FillUpdate(*generation_, {}, pin_.sequence_id(), remote_, round, n, propose->mutable_sequence());
  if (place_ == Place::kSecond) DrawOtherwise(*propose->mutable_sequence());
  const int draft_vocab = static_cast<int>(draft.vocab_size());
  if (draft_vocab != vocab_ && !FitVocabulary(draft_vocab, vocab_, *propose->mutable_sequence())) {
    // The draft cannot propose later either: committed tokens stay.
    unfit_vocab_ = draft.vocab_size();
    return false;
  }
  const int nodes = wanted_.tree ? MaxNodes(*wanted_.tree, k) : k;
  if (wanted_.tree && nodes > static_cast<int>(draft.max_tree_nodes())) wanted_.tree.reset();
  FillRequest(wanted_, k, propose);
  const Clock::duration allowed = budget_ + kBudgetPerToken * propose->sequence().tokens_size();
  SetBudget(allowed, propose->mutable_sequence()->mutable_budget());
  item->call = item->server->link->Start(std::move(message), pin_.sequence_id(), round);
  item->deadline = Clock::now() + allowed + kAnswerGrace;
  item->n = n;
  item->k = k;
  item->nodes = wanted_.tree ? nodes : k;
  in_flight_ = std::move(item);
  return true;
}

std::optional<ModelDrafter::InFlight> ModelDrafter::Prepare() {
  InFlight item;
  item.server = pin_.server();
  TurnQueue& suspects = item.server->link->suspects();
  // A suspect is not drafted for while the item of another suspect is in flight.
  const bool is_suspect = losses_.suspect();
  if (!is_suspect || suspects.size() == 0) item.permit = item.server->breaker.TryPass(Clock::now());
  if (item.permit == nullptr) {
    status_ = StatusWhenAway(status_);
    return std::nullopt;
  }
  if (is_suspect) item.turn = std::make_unique<TurnQueue::Turn>(&suspects);
  return item;
}

asio::awaitable<Proposal> ModelDrafter::Take(v1::ItemTiming* timing) {
  while (in_flight_ || Send()) {
    DraftLink::Answer answer = co_await in_flight_->call->Wait(in_flight_->deadline);
    const InFlight item = *std::exchange(in_flight_, std::nullopt);
    if (!answer.status.ok()) {
      status_ = DraftStatus::kFailed;
      if (OnRefusal(item, answer)) continue;
      break;
    }
    // The draft has the drafted tokens in its cache; OnVerdict tells how many are committed.
    remote_.OnAnswer(answer.result.cached(), item.n, 0);
    losses_.OnAnswer(item.n);
    if (answer.result.cached() < item.n && answer.result.nodes_size() > 0) {
      // The draft was short of blocks. Asked again at once, it would take blocks from other sequences.
      not_before_ = Clock::now() + full_pause_.Next();
    } else {
      full_pause_.Reset();
    }
    // Only the prompt was computed, the branch's proposal was not wanted, or it gave way before it drafted.
    if (item.n < generation_->size() || (item.is_ahead && answer.result.nodes().empty())) {
      item.permit->Succeed();
      continue;
    }
    *timing = answer.result.timing();
    absl::StatusOr<Proposal> proposal = Parse(answer.result, item);
    if (proposal.ok()) {
      item.permit->Succeed();
      status_ = DraftStatus::kUsable;
      if (item.is_ahead) ahead_.steps = static_cast<int>(proposal->size()) + (item.drew_first ? 1 : 0);
      co_return *std::move(proposal);
    }
    item.permit->Fail(Clock::now());
    pin_.Avoid();
    status_ = DraftStatus::kFailed;
    metrics_->OnDraftError(ReasonOf(proposal.status()));
    // An empty proposal is late, not wrong.
    if (answer.result.nodes_size() > 0) remote_.Forget();
    break;
  }
  co_return Proposal();
}

void ModelDrafter::OnVerdict(size_t n, const Verdict& verdict) {
  remote_.OnVerdict(n, verdict.path.size());
  if (branches_.size() == 0) return;
  ahead_.branches = static_cast<int>(branches_.size());
  // If a branch brought the draft down, nobody knows which one.
  if (branches_.lost()) may_run_ahead_ = false;
  std::optional<Branch> hit = branches_.TakeHit(verdict);
  ahead_.wasted_tokens = branches_.wasted_tokens();
  if (hit) Adopt(*std::move(hit));
}

void ModelDrafter::Adopt(Branch branch) {
  const std::shared_ptr<DraftPool::Server>& server = pin_.server();
  InFlight item{.server = server,
                .permit = server->breaker.TryPass(Clock::now()),
                .turn = nullptr,
                .call = std::move(branch.call),
                .deadline = Clock::now() + budget_ + kAnswerGrace,
                .n = branch.n,
                .k = branch.k,
                .nodes = branch.k,
                .is_ahead = true,
                .drew_first = branch.draws_first};
  if (item.permit == nullptr) return server->link->PostRelease(branch.sequence_id);
  ahead_.hit = true;
  // Sent even if the branch is answered: it stays, so the draft must no longer let it give way to others.
  v1::DraftItem promote;
  promote.mutable_promote()->set_sequence_id(branch.sequence_id);
  SetBudget(budget_, promote.mutable_promote()->mutable_budget());
  server->link->Post(std::move(promote));
  pin_.Adopt(branch.sequence_id);
  remote_ = std::move(branch.remote);
  in_flight_ = std::move(item);
}

absl::StatusOr<Proposal> ModelDrafter::Parse(const v1::ProposeResult& result, const InFlight& item) const {
  if (result.nodes().empty()) {
    return MakeError(absl::StatusCode::kDeadlineExceeded, "PROPOSAL_EMPTY", "no token in time");
  }
  const Rule rule = OUTRIDER_TRY(ParseRule(generation_->request().params.rule()));
  Proposal proposal = OUTRIDER_TRY(ParseUnpreparedProposal(result.nodes(), rule, vocab_));
  if (Depth(proposal) > item.k || result.nodes_size() > item.nodes) {
    return MakeError(absl::StatusCode::kInternal, "PROPOSAL_TOO_LONG", "more tokens than were asked for");
  }
  const bool has_alternatives = result.alternatives_size() == result.nodes_size();
  const bool has_confidence = result.confidence_size() == result.nodes_size();
  for (int i = 0; i < result.nodes_size(); ++i) {
    ProposalNode& node = proposal[i];
    if (has_confidence) node.confidence = result.confidence(i);
    if (!has_alternatives) continue;
    for (const uint32_t id : result.alternatives(i).ids()) {
      if (id < static_cast<uint32_t>(vocab_)) node.alternatives.push_back(static_cast<TokenId>(id));
    }
  }
  return proposal;
}

bool ModelDrafter::OnRefusal(const InFlight& item, const DraftLink::Answer& answer) {
  if (answer.status.code() == absl::StatusCode::kCancelled) return false;
  if (item.is_ahead && remote_.OnRefusal(answer.status, answer.result.cached()) != Remedy::kNone) {
    // A branch gives way to all other work. Its tokens are asked for again like any proposal.
    item.permit->Succeed();
    return true;
  }
  metrics_->OnDraftError(ReasonOf(answer.status));
  const Clock::time_point now = Clock::now();
  const Remedy remedy = remote_.OnRefusal(answer.status, answer.result.cached());
  // A draft that has lost a sequence, or has no room for one, works as it should.
  if (remedy == Remedy::kNone) {
    item.permit->Fail(now);
    pin_.Avoid();
  } else {
    item.permit->Succeed();
  }
  if (answer.lost) {
    losses_.OnLost(item.n);
    if (losses_.must_give_up()) {
      // The generation goes on without a draft.
      metrics_->OnDraftError("ITEM_LOST");
      LogWarning("draft given up for a request",
                 {{"request_id", generation_->request().context.request_id()},
                  {"sequence", absl::BytesToHexString(generation_->sequence_id())},
                  {"tokens", generation_->size()}});
    }
  } else if (answer.status.code() != absl::StatusCode::kDeadlineExceeded) {
    losses_.OnAnswer(item.n);
  }
  if (remedy == Remedy::kWait) not_before_ = now + full_pause_.Next(RetryAfter(answer.status));
  return remedy == Remedy::kResend;
}

bool FitVocabulary(int draft_vocab, int target_vocab, v1::SequenceUpdate& update) {
  if (!CheckTokenIds(update.tokens(), static_cast<uint32_t>(draft_vocab), "tokens").ok()) return false;
  return !update.has_params() || FitParams(draft_vocab, target_vocab, *update.mutable_params());
}

}  // namespace outrider
