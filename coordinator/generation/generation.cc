#include "coordinator/generation/generation.h"

#include <algorithm>
#include <utility>

#include "common/rpc/convert.h"
#include "common/rpc/fresh_bits.h"
#include "common/text/utf8.h"

namespace outrider {
namespace {

// Equal parameters have equal hashes. The servers only compare them.
uint64_t HashOf(const v1::SequenceParams& params) {
  uint64_t hash = kEmptyPrefixHash;
  for (unsigned char byte : params.SerializeAsString()) hash = ExtendPrefixHash(hash, byte);
  return hash;
}

}  // namespace

Generation::Generation(Request request, const Tokenizer* tokenizer, Clock::time_point received)
    : request_(std::move(request)),
      tokenizer_(tokenizer),
      sequence_id_(NewSequenceId()),
      params_hash_(HashOf(request_.params)),
      hashes_{kEmptyPrefixHash},
      detokenizer_(tokenizer, /*skip_special_tokens=*/true),
      stops_(*StopMatcher::Create(request_.stop_strings)),  // checked when the request was parsed
      echoes_(request_.echo),
      received_(received),
      first_token_(received),
      last_token_(received) {
  for (TokenId token : request_.prompt) Push(token);
  std::string already_sent;
  for (TokenId token : request_.resumed) {
    if (Append(token, &already_sent)) break;
  }
  if (Room() == 0 && !ended_ && !WantsPromptLogprobs()) ended_ = v1::FINISH_REASON_LENGTH;
  stats_.set_exact(!request_.params.has_lenience() || request_.params.lenience() == 1);
}

std::optional<v1::GenerateResponse> Generation::FinishedAlready() {
  if (!ended_) return std::nullopt;
  v1::GenerateResponse chunk;
  chunk.set_position(static_cast<uint32_t>(emitted()));
  Echo(&chunk);
  *chunk.mutable_finish() = MakeFinish();
  return chunk;
}

bool Generation::Append(TokenId token, std::string* text) {
  Push(token);
  if (std::ranges::count(request_.end_ids, token) > 0) {
    // An end id is not part of the text, but text held back for a possible stop string is.
    text->append(stops_.Append(detokenizer_.Flush()));
    if (!stops_.match()) text->append(stops_.Flush());
    ended_ = v1::FINISH_REASON_STOP;
    return true;
  }
  const bool may_stop = static_cast<uint32_t>(emitted()) > request_.params.sampling().min_tokens();
  text->append(stops_.Append(detokenizer_.Append(token), may_stop));
  const bool full = Room() == 0;
  if (full && !stops_.match()) text->append(stops_.Append(detokenizer_.Flush(), may_stop));
  if (stops_.match()) {
    ended_ = v1::FINISH_REASON_STOP;
  } else if (full) {
    text->append(stops_.Flush());
    ended_ = v1::FINISH_REASON_LENGTH;
  }
  return ended_.has_value();
}

v1::GenerateResponse Generation::Commit(const Proposal& proposal, const Verdict& verdict, size_t predicted) {
  v1::GenerateResponse chunk;
  chunk.set_position(static_cast<uint32_t>(emitted()));
  if (stats_.rounds() == 0) chunk.set_prompt_tokens(static_cast<uint32_t>(request_.prompt.size()));
  bool over = Room() == 0;  // only the prompt was to be scored
  if (over) ended_ = v1::FINISH_REASON_LENGTH;
  for (size_t i = 0; i < verdict.path.size() && !over; ++i) {
    over = Emit(proposal[verdict.path[i]].token, v1::TOKEN_KIND_ACCEPTED, &chunk);
  }
  const auto standing = static_cast<size_t>(chunk.tokens_size());
  if (!over) over = Emit(verdict.token, ToProto(verdict.kind), &chunk);
  CountRound(proposal, verdict, standing);
  stats_.set_accepted_prediction_tokens(stats_.accepted_prediction_tokens() + std::min(predicted, standing));
  End(over, &chunk);
  return chunk;
}

v1::GenerateResponse Generation::CommitFound(std::span<const TokenId> tokens,
                                             std::span<const v1::TokenKind> kinds, double score,
                                             const v1::SpeculationStats& search) {
  stats_ = search;
  v1::GenerateResponse chunk;
  chunk.set_prompt_tokens(static_cast<uint32_t>(request_.prompt.size()));
  bool over = false;
  Echo(&chunk);
  for (size_t i = 0; i < tokens.size() && !over; ++i) over = Emit(tokens[i], kinds[i], &chunk);
  End(over, &chunk);
  chunk.mutable_finish()->set_score(score);
  return chunk;
}

bool Generation::Emit(TokenId token, v1::TokenKind kind, v1::GenerateResponse* chunk) {
  v1::GeneratedToken* generated = chunk->add_tokens();
  generated->set_id(static_cast<uint32_t>(token));
  generated->set_kind(kind);
  CountToken(kind);
  const bool ends = Append(token, generated->mutable_text());
  chunk->mutable_text()->append(generated->text());
  return ends;
}

void Generation::AddLogprobs(const Logprobs& emitted, v1::GenerateResponse* chunk) const {
  for (int i = 0; i < std::min(emitted.size(), chunk->tokens_size()); ++i) {
    *chunk->mutable_tokens(i)->mutable_logprobs() = WithText(emitted[i]);
  }
}

void Generation::AddPromptLogprobs(const Logprobs& prompt, int first, int most, v1::GenerateResponse* chunk) {
  Echo(chunk);
  const int end = std::min(prompt.size(), first + most);
  for (int i = first; i < end; ++i) *chunk->add_prompt_logprobs() = WithText(prompt[i]);
}

void Generation::CountToken(v1::TokenKind kind) {
  switch (kind) {
    case v1::TOKEN_KIND_ACCEPTED:
      return stats_.set_emitted_accepted(stats_.emitted_accepted() + 1);
    case v1::TOKEN_KIND_CORRECTED:
      return stats_.set_emitted_corrected(stats_.emitted_corrected() + 1);
    case v1::TOKEN_KIND_BONUS:
      return stats_.set_emitted_bonus(stats_.emitted_bonus() + 1);
    default:
      return stats_.set_emitted_plain(stats_.emitted_plain() + 1);
  }
}

void Generation::CountRound(const Proposal& proposal, const Verdict& verdict, size_t standing) {
  stats_.set_rounds(stats_.rounds() + 1);
  AcceptanceByConfidence& recent =
      recent_acceptance_.try_emplace(round_drafter_, kAcceptanceDecay).first->second;
  if (proposal.empty()) {
    // Old acceptance fades even without drafts. Otherwise a run of bad luck would be believed forever.
    recent.Age(1);
    return;
  }
  tally_ = {.is_tree = !IsChain(proposal),
            .depths = Depths(proposal),
            .accepted = static_cast<int>(standing),
            .accepted_after_end = static_cast<int>(verdict.path.size() - standing)};
  if (tally_.is_tree) tally_.offered = OfferedNodes(proposal, std::span(verdict.path).first(standing));
  AddTally(tally_, &stats_);
  if (!tally_.is_tree) recent.Observe(proposal, verdict.path.size());
  if (request_.params.rule() == v1::RULE_TOKEN) {
    expected_accepted_ += verdict.expected_accepted;
    observed_accepted_ += static_cast<double>(verdict.path.size());
    judged_ += verdict.judged;
  }
}

v1::Finish Generation::MakeFinish() const {
  v1::Finish finish;
  finish.set_reason(*ended_);
  if (stops_.match()) finish.set_stop_string(request_.stop_strings[stops_.match()->stop_index]);
  v1::Usage* usage = finish.mutable_usage();
  usage->set_prompt_tokens(static_cast<uint32_t>(request_.prompt.size()));
  usage->set_completion_tokens(static_cast<uint32_t>(emitted()));
  usage->set_cached_prompt_tokens(cached_prompt_tokens_);
  usage->set_max_tokens(static_cast<uint32_t>(request_.max_tokens));
  usage->set_first_token_seconds(progress().first_token_seconds);
  usage->set_decode_seconds(progress().decode_seconds);
  v1::SpeculationStats* stats = finish.mutable_speculation();
  *stats = stats_;
  stats->set_schedule(ScheduleOf(stats_));
  stats->set_prediction_tokens(request_.prediction.size());
  stats->set_acceptance_rate(AcceptanceRate(stats_));
  stats->set_mean_accepted_length(MeanAcceptedLength(stats_));
  if (judged_ > 0) stats->set_expected_acceptance(expected_accepted_ / static_cast<double>(judged_));
  if (expected_accepted_ > 0) stats->set_observed_over_expected(observed_accepted_ / expected_accepted_);
  return finish;
}

void Generation::Echo(v1::GenerateResponse* chunk) {
  if (!std::exchange(echoes_, false)) return;
  v1::EchoedPrompt* echoed = chunk->mutable_prompt();
  echoed->set_text(tokenizer_->Decode(request_.prompt, /*skip_special_tokens=*/true));
  echoed->mutable_first()->set_id(static_cast<uint32_t>(request_.prompt.front()));
  AddText(echoed->mutable_first());
}

void Generation::AddText(v1::TokenLogprob* token) const {
  const std::string& bytes = tokenizer_->TokenBytes(static_cast<TokenId>(token->id()));
  token->set_text(LossyUtf8(bytes));
  if (token->text() != bytes) token->set_bytes(bytes);
}

}  // namespace outrider
