#include "coordinator/vllm/vllm_answer.h"

#include <algorithm>
#include <string>
#include <utility>

namespace outrider {
namespace {

// Adds the alternatives to a position's token.
void AddCandidates(const v1::PositionLogprobs& position, vllm::CandidateTokenInfo* candidates) {
  for (int i = 0; i < position.top_size(); ++i) {
    const v1::TokenLogprob& other = position.top(i);
    if (other.id() == position.token().id()) continue;
    vllm::CandidateTokenInfo::TokenInfo* const candidate = candidates->add_tokens();
    candidate->set_id(other.id());
    candidate->set_logprob(static_cast<float>(other.logprob()));
    candidate->set_rank(static_cast<uint32_t>(i + 1));
  }
}

// Adds a position to the lists of a prompt or of an output.
template <typename Lists>
void AddPosition(const v1::PositionLogprobs& position, Lists* lists) {
  lists->add_logprobs(static_cast<float>(position.token().logprob()));
  AddCandidates(position, lists->add_candidate_tokens());
}

}  // namespace

VllmAnswer::VllmAnswer(const vllm::GenerateRequest* request, const v1::GenerateRequest& translated)
    : request_(*request), prompt_(vllm::PromptInfo()), sequences_(std::max(translated.n(), 1u)) {
  const vllm::ResponseOptions& options = request_.response();
  if (options.prompt_token_ids()) *prompt_->mutable_token_ids() = translated.tokens().ids();
  if (!options.prompt_logprobs()) return;
  AddPosition({}, &*prompt_);  // the first token, which has no log-probability
}

std::optional<vllm::GenerateResponse> VllmAnswer::Take(const v1::GenerateResponse& chunk) {
  if (prompt_) TakePrompt(chunk);
  if (chunk.tokens().empty() && !chunk.has_finish()) return std::nullopt;
  vllm::GenerateResponse response;
  if (prompt_) *response.mutable_prompt_info() = *std::exchange(prompt_, std::nullopt);
  vllm::SequenceOutput* const output = response.mutable_outputs();
  output->set_index(chunk.sample());
  const vllm::ResponseOptions& options = request_.response();
  if (!options.has_output_text() || options.output_text()) output->set_text(chunk.text());
  AddTokens(chunk, output);
  Sequence& sequence = sequences_[chunk.sample()];
  sequence.tokens += output->num_tokens();
  if (chunk.has_finish()) {
    sequence.finished = true;
    *output->mutable_finish_info() = FinishOf(chunk);
  }
  return response;
}

void VllmAnswer::TakePrompt(const v1::GenerateResponse& chunk) {
  if (chunk.prompt_tokens() > 0) prompt_->set_num_prompt_tokens(chunk.prompt_tokens());
  for (const v1::PositionLogprobs& position : chunk.prompt_logprobs()) {
    AddPosition(position, &*prompt_);
  }
}

void VllmAnswer::AddTokens(const v1::GenerateResponse& chunk, vllm::SequenceOutput* output) const {
  const vllm::ResponseOptions& options = request_.response();
  output->set_num_tokens(static_cast<uint32_t>(chunk.tokens_size()));
  for (const v1::GeneratedToken& token : chunk.tokens()) {
    if (options.output_token_ids()) output->add_token_ids(token.id());
    if (token.has_logprobs()) AddPosition(token.logprobs(), output);
  }
}

vllm::FinishInfo VllmAnswer::FinishOf(const v1::GenerateResponse& chunk) const {
  const v1::Finish& finish = chunk.finish();
  vllm::FinishInfo info;
  info.set_num_output_tokens(finish.usage().completion_tokens());
  info.set_num_cached_tokens(finish.usage().cached_prompt_tokens());
  if (finish.reason() != v1::FINISH_REASON_STOP) {
    info.set_finish_reason(vllm::FinishInfo::LENGTH);
    return info;
  }
  info.set_finish_reason(vllm::FinishInfo::STOP);
  if (!finish.stop_string().empty()) {
    info.set_stop_string(finish.stop_string());
  } else if (!chunk.tokens().empty()) {
    // If no stop string ended the text, its last token did.
    const uint32_t last = chunk.tokens().rbegin()->id();
    if (std::ranges::count(request_.stopping().stop_token_ids(), last) > 0) {
      info.set_stop_token_id(last);
    } else {
      info.set_eos_token_id(last);
    }
  }
  return info;
}

std::vector<vllm::GenerateResponse> VllmAnswer::Abort() const {
  std::vector<vllm::GenerateResponse> ends;
  for (size_t i = 0; i < sequences_.size(); ++i) {
    if (sequences_[i].finished) continue;
    vllm::SequenceOutput* const output = ends.emplace_back().mutable_outputs();
    output->set_index(static_cast<uint32_t>(i));
    output->mutable_finish_info()->set_num_output_tokens(sequences_[i].tokens);
    output->mutable_finish_info()->set_finish_reason(vllm::FinishInfo::ABORTED);
  }
  return ends;
}

void Join(const vllm::GenerateResponse& next, vllm::GenerateResponse* whole) {
  // MergeFrom appends repeated fields and overwrites the others.
  vllm::SequenceOutput* const output = whole->mutable_outputs();
  std::string text = std::move(*output->mutable_text());
  text += next.outputs().text();
  const uint32_t tokens = output->num_tokens() + next.outputs().num_tokens();
  whole->MergeFrom(next);
  output->set_text(std::move(text));
  output->set_num_tokens(tokens);
}

}  // namespace outrider
