#include "coordinator/decode/drafters/local_drafters.h"

#include <algorithm>
#include <functional>
#include <span>

#include "common/spec/random.h"

namespace outrider {
namespace {

// The most tokens that a round reads. They take a millisecond or two of the executor thread. Until a longer
// prompt has been read, CopyDrafter proposes nothing, and NgramDrafter knows only its beginning.
constexpr size_t kMostRead = 2048;
// Separates texts that do not follow each other.
constexpr TokenId kSeparator = -1;

// Keeps the nodes whose depth is less than `depth`. The choice does not depend on the tokens, so q remains
// the distribution that they were drawn from.
Proposal CutToDepth(Proposal proposal, int depth) {
  const std::vector<int> depths = Depths(proposal);
  std::vector<int> places(proposal.size());
  Proposal cut;
  for (size_t i = 0; i < proposal.size(); ++i) {
    if (depths[i] >= depth) continue;
    places[i] = static_cast<int>(cut.size());
    if (proposal[i].parent >= 0) proposal[i].parent = places[static_cast<size_t>(proposal[i].parent)];
    cut.push_back(std::move(proposal[i]));
  }
  return cut;
}

}  // namespace

Proposal NgramDrafter::Draft(int k) {
  const std::vector<TokenId>& committed = generation_->tokens();
  const size_t readable = std::min(committed.size(), counted_ + kMostRead);
  while (counted_ < readable) table_.Append(committed[counted_++]);

  const v1::SequenceParams& params = generation_->request().params;
  const bool draws = params.rule() != v1::RULE_COUPLED && !generation_->greedy();
  const RandomKey key{params.seed(), params.sample_index()};
  // Each token of the chain becomes a part of the context of the next.
  const size_t context = std::min<size_t>(committed.size(), options_.max_context);
  std::vector<TokenId> text(committed.end() - static_cast<ptrdiff_t>(context), committed.end());
  Proposal chain;
  const int most = std::min(k, options_.max_tokens);
  while (static_cast<int>(chain.size()) < most) {
    if (draws) {
      Distribution q = table_.Law(text, options_.min_context);
      if (q.form == Distribution::Form::kAbsent) break;
      const size_t n = committed.size();
      text.push_back(Sample(q, Uniform(key, n + chain.size(), Purpose::kDraft, 0, n)));
      AppendToChain(text.back(), std::move(q), chain);
    } else {
      const std::optional<TokenId> next = table_.Next(text, options_.min_context);
      if (!next) break;
      text.push_back(*next);
      AppendUndrawn(*next, params.rule(), chain);
    }
  }
  return chain;
}

void NgramTable::Append(TokenId token) {
  ++appended_;
  for (int length = 1; length <= static_cast<int>(last_.size()); ++length) Count(Last(last_, length), token);
  last_.push_back(token);
  if (static_cast<int>(last_.size()) > max_context_) last_.erase(last_.begin());
}

void NgramTable::Count(const Context& context, TokenId token) {
  Continuations& known = continuations_[context];
  ++known.tokens;
  std::vector<Continuation>& likeliest = known.likeliest;
  if (const auto it = std::ranges::find(likeliest, token, &Continuation::token); it != likeliest.end()) {
    ++it->count;
    it->last = appended_;
    return;
  }
  const auto before = unlikely_.find({context, token});
  const bool is_new = before == unlikely_.end();
  const Continuation counted{token, is_new ? 1 : before->second + 1, appended_};
  if (is_new) {
    ++known.distinct;
    ++size_;
  } else {
    unlikely_.erase(before);
  }
  if (likeliest.size() < kMostLikely) return likeliest.push_back(counted);
  // A rank rises only when its token is counted, so tokens not among the likeliest stay below them.
  const auto least = std::ranges::min_element(likeliest, {}, &Continuation::rank);
  Continuation other = counted;
  if (counted.rank() > least->rank()) std::swap(*least, other);
  unlikely_[{context, other.token}] = other.count;
}

std::optional<TokenId> NgramTable::Next(std::span<const TokenId> tokens, int min_context) const {
  const int longest = std::min<int>(max_context_, static_cast<int>(tokens.size()));
  for (int length = longest; length >= min_context; --length) {
    const Continuations* const known = Find(tokens, length);
    if (known == nullptr) continue;
    return std::ranges::max_element(known->likeliest, {}, &Continuation::rank)->token;
  }
  return std::nullopt;
}

Distribution NgramTable::Law(std::span<const TokenId> tokens, int min_context) const {
  const int longest = std::min<int>(max_context_, static_cast<int>(tokens.size()));
  std::vector<std::pair<TokenId, double>> law;
  int length = 1;
  for (; length <= longest; ++length) {
    const Continuations* const known = Find(tokens, length);
    if (known == nullptr) break;  // nor does a longer one occur
    // The weight of the shorter contexts is the number of different tokens that followed this one.
    const double shorter = law.empty() ? 0 : known->distinct;
    const double all = known->tokens + shorter;
    for (auto& [token, p] : law) p *= shorter / all;
    for (const Continuation& c : known->likeliest) {
      auto it = std::ranges::find(law, c.token, &std::pair<TokenId, double>::first);
      if (it == law.end()) it = law.insert(law.end(), {c.token, 0.0});
      it->second += c.count / all;
    }
  }
  if (length <= min_context) return {};
  if (law.size() > kMostLikely) {
    std::ranges::nth_element(law, law.begin() + kMostLikely, std::greater<>(),
                             &std::pair<TokenId, double>::second);
    law.resize(kMostLikely);
  }
  std::ranges::sort(law);
  Distribution q{.form = law.size() == 1 ? Distribution::Form::kPointMass : Distribution::Form::kSparse};
  for (const auto& [token, p] : law) {
    q.ids.push_back(token);
    if (law.size() > 1) q.weights.push_back(static_cast<float>(p));
  }
  q.total = law.size() == 1 ? 1 : SumWeights(q.weights);
  return q;
}

size_t CopyDrafter::TextSize() const {
  const size_t prediction = generation_->request().prediction.size();
  return generation_->size() + (prediction == 0 ? 0 : prediction + 2);
}

TokenId CopyDrafter::TextAt(size_t index) const {
  const std::vector<TokenId>& prediction = generation_->request().prediction;
  const size_t prompt = generation_->request().prompt.size();
  if (prediction.empty() || index < prompt) return generation_->tokens()[index];
  index -= prompt;
  if (index == 0 || index == prediction.size() + 1) return kSeparator;
  return index <= prediction.size() ? prediction[index - 1]
                                    : generation_->tokens()[prompt + index - prediction.size() - 2];
}

Proposal CopyDrafter::Draft(int k) {
  predicted_ = 0;
  const std::vector<TokenId>& text = known_.text();
  const size_t size = TextSize(), readable = std::min(size, text.size() + kMostRead);
  while (text.size() < readable) known_.Append(TextAt(text.size()));
  if (text.size() < size) return {};

  const std::vector<TokenId>& predicted = generation_->request().prediction;
  const size_t prediction = generation_->request().prompt.size() + 1;
  const size_t prediction_end = prediction + predicted.size();
  const std::span answer = std::span(generation_->tokens()).subspan(generation_->request().prompt.size());
  // An answer that has been the prediction so far is likely to remain it, however short it still is.
  const bool follows = answer.size() < predicted.size() &&
                       std::ranges::equal(answer, std::span(predicted).first(answer.size()));
  const auto [length, end] =
      follows ? SuffixAutomaton::Repeat{static_cast<size_t>(k), prediction + answer.size()} : known_.repeat();
  const size_t most = std::min(length, static_cast<size_t>(std::max(k, 0)));
  std::vector<TokenId> copy;
  for (size_t i = end; copy.size() < most; ++i) {
    const TokenId token = i < size ? text[i] : copy[i - size];
    if (token == kSeparator) break;
    copy.push_back(token);
  }
  if (end >= prediction && end < prediction_end) predicted_ = std::min(copy.size(), prediction_end - end);
  Proposal chain;
  for (TokenId token : copy) AppendUndrawn(token, generation_->request().params.rule(), chain);
  return chain;
}

asio::awaitable<Proposal> TargetDrafter::Take(v1::ItemTiming* timing) {
  TargetProposal held = std::exchange(held_, {});
  status_ = DraftStatus::kUsable;
  if (n_ != generation_->size()) co_return Proposal();
  status_ = held.status;
  *timing = held.timing;
  co_return CutToDepth(std::move(held.nodes), most_);
}

asio::awaitable<Proposal> AutoDrafter::Take(v1::ItemTiming* timing) {
  v1::ItemTiming spent = std::exchange(unused_, {});
  Proposal proposal = co_await first_->Take(timing);
  proposed_ = proposal.size();
  if (!proposal.empty()) {
    spent.set_compute_us(spent.compute_us() + timing->compute_us());
    *timing = std::move(spent);
    co_return proposal;
  }
  last_ = second_.get();
  second_->Begin(length_);
  co_return co_await second_->Take(timing);
}

}  // namespace outrider
