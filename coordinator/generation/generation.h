// The state of one request: its committed tokens, their text, and whether it is over. Also how much a round
// of it drafts, and the report on a round that has its verdict.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/grammar/grammar.h"
#include "common/kv/prefix_hash.h"
#include "common/net/asio.h"
#include "common/spec/proposal.h"
#include "common/spec/tree_shape.h"
#include "common/spec/verdict.h"
#include "common/text/stop_matcher.h"
#include "common/text/tokenizer.h"
#include "coordinator/generation/round_tally.h"
#include "outrider/v1/inference.pb.h"

namespace outrider {

// A request that has been checked, with every default filled in.
struct Request {
  std::vector<TokenId> prompt;  // at least one token; leaves room for one more in the context
  std::vector<TokenId> resumed;
  std::vector<TokenId> prediction;  // what the answer is likely to repeat
  v1::SequenceParams params;
  std::shared_ptr<const Grammar> grammar;  // that of `params`, over bytes; null: none
  v1::DrafterKind drafter = v1::DRAFTER_KIND_MODEL;
  int draft_tokens = 0;           // K
  bool adaptive = false;          // draft_tokens is only the largest K; the policy chooses
  std::optional<TreeShape> tree;  // what to draft; unset: chains
  bool chooses_tree = false;      // the policy chooses between chains and trees
  int max_tree_nodes = 0;         // the most nodes of a tree that the policy chooses
  v1::Schedule schedule = v1::SCHEDULE_LOCKSTEP;
  std::vector<std::string> stop_strings;
  std::vector<TokenId> end_ids;  // each ends the generation; excludes the model's own if those are ignored
  int max_tokens = 0;            // cut to the context
  int max_draft_context = std::numeric_limits<int>::max();  // no drafts once prompt and answer are longer
  bool trace = false;
  bool echo = false;
  int prompt_logprobs = -1;  // alternatives to report with each prompt token; -1: none
  v1::RequestContext context;
  int samples = 1;  // their sample indices begin at that of `params`
  // If set, the request is a beam search, which samples nothing, and `samples` is the number of texts wanted.
  std::optional<v1::BeamOptions> beam;
  int candidates = 0;  // for the beam search: likeliest tokens that the target reports instead of a verdict
};

// Only committed tokens count for text, stops and usage. Only beam search adds others (Extend). One thread.
class Generation {
 public:
  // `request` has been checked; `received` is when it came. The tokenizer must outlive this.
  Generation(Request request, const Tokenizer* tokenizer, Clock::time_point received);

  const Request& request() const { return request_; }
  bool greedy() const {
    const v1::SamplingParams& sampling = request_.params.sampling();
    return sampling.has_temperature() && sampling.temperature() == 0;
  }
  // 16 random bytes.
  const std::string& sequence_id() const { return sequence_id_; }
  uint64_t params_hash() const { return params_hash_; }

  // Prompt and output.
  const std::vector<TokenId>& tokens() const { return tokens_; }
  size_t size() const { return tokens_.size(); }
  uint64_t prefix_hash(size_t n) const { return hashes_[n]; }
  int emitted() const { return static_cast<int>(tokens_.size() - request_.prompt.size()); }

  // How many more tokens may be emitted. A round emits up to K + 1.
  int Room() const { return request_.max_tokens - emitted(); }
  // How many tokens may be drafted next: at most Room() - 1, and within max_draft_context. Can be negative.
  int DraftRoom() const {
    return std::min(Room() - 1, request_.max_draft_context - static_cast<int>(size()));
  }

  // The target found this many tokens of the prompt in its prefix cache.
  void OnPromptCached(uint32_t tokens) { cached_prompt_tokens_ = tokens; }

  // Whether the prompt is still to be scored; true before the first round only.
  bool WantsPromptLogprobs() const { return request_.prompt_logprobs >= 0 && stats_.rounds() == 0; }

  // The traceparent that the items of this round carry; empty: the round is not traced.
  void SetRoundTrace(const std::string& traceparent) { round_trace_ = traceparent; }
  const std::string& round_trace() const { return round_trace_; }

  // Returns the number of the next item of this sequence, for either server.
  uint64_t NextRound() { return ++last_round_; }

  // Commits a round: the tokens on the verdict's path through `proposal`, then the verdict's own token, up to
  // the first that ends the generation. Returns the chunk to send, with `finish` if the generation is over.
  // The first `predicted` tokens of the proposal were drafted from the request's prediction.
  v1::GenerateResponse Commit(const Proposal& proposal, const Verdict& verdict, size_t predicted = 0);

  // For a beam search: appends tokens that may still be abandoned. Makes no text, checks for no end.
  void Extend(std::span<const TokenId> tokens) {
    for (TokenId token : tokens) Push(token);
  }

  // Commits a text that a beam search found; `kinds` has its tokens' kinds. Returns the only chunk to send.
  v1::GenerateResponse CommitFound(std::span<const TokenId> tokens, std::span<const v1::TokenKind> kinds,
                                   double score, const v1::SpeculationStats& search);

  // Counts a round with drafts for its outcomes. `hit`: its outcome was one of them. Call before Commit.
  void CountAhead(bool hit) {
    stats_.set_ahead_rounds(stats_.ahead_rounds() + 1);
    stats_.set_ahead_hits(stats_.ahead_hits() + (hit ? 1 : 0));
  }

  // Adds the round's log-probabilities, with the texts of the tokens, to the chunk that Commit made.
  using Logprobs = google::protobuf::RepeatedPtrField<v1::PositionLogprobs>;
  void AddLogprobs(const Logprobs& emitted, v1::GenerateResponse* chunk) const;
  // Does so for at most `most` prompt positions from `first` on. Adds the prompt once, if it is echoed.
  void AddPromptLogprobs(const Logprobs& prompt, int first, int most, v1::GenerateResponse* chunk);

  // Before the first round: returns the chunk to send if the resumed tokens already end the generation.
  std::optional<v1::GenerateResponse> FinishedAlready();

  // The counts of the last round with a proposal.
  const RoundTally& tally() const { return tally_; }
  // Acceptance of what this drafter proposed for this generation.
  AcceptanceByConfidence recent_acceptance(v1::DrafterKind drafter) const {
    const auto found = recent_acceptance_.find(drafter);
    return found == recent_acceptance_.end() ? AcceptanceByConfidence(kAcceptanceDecay) : found->second;
  }
  // Who proposes in this round: the request's drafter, or the one that `auto` asks.
  v1::DrafterKind round_drafter() const { return round_drafter_; }
  void SetRoundDrafter(v1::DrafterKind drafter) { round_drafter_ = drafter; }

  bool finished() const { return ended_.has_value(); }
  std::optional<v1::FinishReason> finish_reason() const { return ended_; }
  const v1::SpeculationStats& stats() const { return stats_; }

  // How many tokens this call has emitted so far, without the resumed ones, and how long that took.
  struct Progress {
    int tokens;
    double first_token_seconds;  // from receipt to the first token
    double decode_seconds;       // from the first token to the last
  };
  Progress progress() const {
    return {.tokens = emitted() - static_cast<int>(request_.resumed.size()),
            .first_token_seconds = Seconds(first_token_ - received_),
            .decode_seconds = Seconds(last_token_ - first_token_)};
  }

  std::string Display(TokenId token) const { return tokenizer_->TokenText(token); }

 private:
  void Push(TokenId token) {
    tokens_.push_back(token);
    hashes_.push_back(ExtendPrefixHash(hashes_.back(), token));
  }
  // Appends a committed token, and the text it releases to *text. Returns whether it ends the generation.
  bool Append(TokenId token, std::string* text);
  // Does the same, and adds the token to the chunk.
  bool Emit(TokenId token, v1::TokenKind kind, v1::GenerateResponse* chunk);
  void End(bool over, v1::GenerateResponse* chunk) {
    last_token_ = Clock::now();
    if (first_token_ == received_) first_token_ = last_token_;
    if (over) *chunk->mutable_finish() = MakeFinish();
  }
  void CountToken(v1::TokenKind kind);
  // `standing` is the number of accepted tokens up to the end of the text.
  void CountRound(const Proposal& proposal, const Verdict& verdict, size_t standing);
  void Echo(v1::GenerateResponse* chunk);
  void AddText(v1::TokenLogprob* token) const;
  v1::PositionLogprobs WithText(v1::PositionLogprobs logprobs) const {
    AddText(logprobs.mutable_token());
    for (v1::TokenLogprob& token : *logprobs.mutable_top()) AddText(&token);
    return logprobs;
  }
  v1::Finish MakeFinish() const;

  const Request request_;
  const Tokenizer* const tokenizer_;
  const std::string sequence_id_;
  const uint64_t params_hash_;
  std::vector<TokenId> tokens_;
  std::vector<uint64_t> hashes_;  // [size() + 1]
  std::string round_trace_;
  uint64_t last_round_ = 0;
  StreamingDetokenizer detokenizer_;
  StopMatcher stops_;
  v1::SpeculationStats stats_;
  RoundTally tally_;
  static constexpr double kAcceptanceDecay = 0.99;
  std::map<v1::DrafterKind, AcceptanceByConfidence> recent_acceptance_;
  v1::DrafterKind round_drafter_ = request_.drafter;
  double expected_accepted_ = 0;
  double observed_accepted_ = 0;  // in the rounds that expected_accepted_ covers
  int64_t judged_ = 0;            // drafted tokens judged in those rounds
  uint32_t cached_prompt_tokens_ = 0;
  bool echoes_;  // the prompt is still to be sent back
  std::optional<v1::FinishReason> ended_;
  const Clock::time_point received_;
  Clock::time_point first_token_;
  Clock::time_point last_token_;
};

struct DraftLength {
  int most = 0;  // K; for a tree, the depth
  // When a draft model stops early. Other drafters ignore it.
  std::optional<DraftStop> stop = {};
  // The draft model also works on likely outcomes while the round is verified. Other drafters ignore it.
  bool ahead = false;
  std::optional<TreeShape> tree = {};  // unset: a chain
};

// An outcome of a verification that is worth drafting for.
struct Outcome {
  size_t accepted = 0;                // drafted tokens that stand
  std::optional<TokenId> token = {};  // follows them; unset: the draft draws it, after a whole proposal
  DraftLength length;                 // of the proposal that follows it
};

// The result of asking for a proposal.
enum class DraftStatus {
  kUsable,  // a proposal, or there was nothing to propose
  kFailed,  // the draft was asked; its answer was late, empty, an error, or refused by the target
  kAway,    // the draft cannot be asked: it is down, or has failed so often that it is left alone
};

struct AheadReport {
  bool runs = false;         // the schedule was to draft while this round was verified
  int steps = 0;             // draft steps of this round's proposal if it was begun ahead, else 0
  int branches = 0;          // outcomes of this round that were drafted for
  bool hit = false;          // the outcome of this round was one of them
  size_t wasted_tokens = 0;  // drafted for outcomes that did not come, as far as the draft had answered
};

// Where the time of a round went. A proposal that the target itself made, at the end of the previous round,
// counts in the round that verifies it: in `draft`, `draft_server` and `round`.
struct RoundTimes {
  Clock::duration draft{};      // waiting for the proposal
  v1::ItemTiming draft_server;  // the server's part of it
  Clock::duration verify{};     // waiting for the verdict
  v1::ItemTiming verify_server;
  Clock::duration round{};
};

// The server's time from receipt to answer.
inline uint32_t ServerMicroseconds(const v1::ItemTiming& timing) {
  return timing.queue_us() + timing.compute_us();
}

// Its pointers need only be valid while the report is handled.
struct RoundReport {
  const Generation* generation;  // the round is committed
  const Proposal* proposal;      // what was verified
  const Verdict* verdict;
  v1::DrafterKind drafter;  // who proposed; matters only if anything was proposed
  DraftStatus draft_status;
  int chosen;               // K as asked for, or as chosen by the draft
  int emitted;              // tokens
  int running;              // generations in progress, this one included
  uint32_t proposal_bytes;  // on the wire; only for requests that are traced
  AheadReport ahead = {};
  bool catches_up = false;  // no proposal in the round before: the drafter computed what it missed
  RoundTimes times;

  // Whether the round computed the prompt.
  bool prefill() const { return generation->stats().rounds() == 1; }
  // Whether a draft was wanted and the drafter could be asked.
  bool speculative() const { return chosen > 0 && draft_status != DraftStatus::kAway; }
  int drafted() const { return static_cast<int>(proposal->size()); }
  int accepted() const { return static_cast<int>(verdict->path.size()); }
};

}  // namespace outrider
