#include "coordinator/decode/drafters/local_drafters.h"

namespace outrider {
namespace {

// Tokens that a round reads at most, which takes a millisecond or two of a thread that serves all. Until a
// longer prompt is read there are no proposals.
constexpr size_t kMostRead = 2048;
// Stands between texts that do not follow each other.
constexpr TokenId kSeparator = -1;

// Keeps the nodes that have fewer than `depth` others before them. Which these are does not depend on the
// tokens, so q stays what they were drawn from.
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
  // Only the end of a long prompt would stay in the history.
  const size_t history = static_cast<size_t>(options_.history);
  if (committed.size() > history) counted_ = std::max(counted_, committed.size() - history);
  while (counted_ < committed.size()) table_.Append(committed[counted_++]);

  // Each token of the chain is the context of the next.
  const size_t context = std::min<size_t>(committed.size(), options_.max_context);
  std::vector<TokenId> chain(committed.end() - static_cast<ptrdiff_t>(context), committed.end());
  const size_t longest = context + static_cast<size_t>(std::max(0, std::min(k, options_.max_tokens)));
  while (chain.size() < longest) {
    const std::optional<TokenId> next = table_.Next(chain, options_.min_context);
    if (!next) break;
    chain.push_back(*next);
  }
  chain.erase(chain.begin(), chain.begin() + static_cast<ptrdiff_t>(context));
  return PointMasses(chain, generation_->request().params.rule());
}

void NgramTable::Append(TokenId token) {
  ++appended_;
  const int longest = std::min<int>(max_context_, static_cast<int>(history_.size()));
  const std::vector<TokenId> before(history_.end() - longest, history_.end());
  for (int length = 1; length <= longest; ++length) Count(Last(before, length), token);
  history_.push_back(token);
  if (history_.size() > history_limit_) ForgetOldest();
}

void NgramTable::ForgetOldest() {
  const int longest = std::min<int>(max_context_, static_cast<int>(history_.size()) - 1);
  const std::vector<TokenId> oldest(history_.begin(), history_.begin() + longest + 1);
  for (int length = 1; length <= longest; ++length) {
    Uncount(Last(std::span(oldest).first(length), length), oldest[length]);
  }
  history_.pop_front();
}

void NgramTable::Count(const Context& context, TokenId token) {
  std::vector<Continuation>& known = continuations_[context];
  auto it = std::find_if(known.begin(), known.end(), [=](const auto& c) { return c.token == token; });
  if (it == known.end()) it = known.insert(known.end(), Continuation{token});
  ++it->count;
  it->last = appended_;
}

void NgramTable::Uncount(const Context& context, TokenId token) {
  const auto entry = continuations_.find(context);
  std::vector<Continuation>& known = entry->second;
  const auto it = std::find_if(known.begin(), known.end(), [=](const auto& c) { return c.token == token; });
  if (--it->count == 0) known.erase(it);
  if (known.empty()) continuations_.erase(entry);
}

std::optional<TokenId> NgramTable::Next(std::span<const TokenId> tokens, int min_context) const {
  const int longest = std::min<int>(max_context_, static_cast<int>(tokens.size()));
  for (int length = longest; length >= min_context; --length) {
    const auto entry = continuations_.find(Last(tokens, length));
    if (entry == continuations_.end()) continue;
    const auto rank = [](const Continuation& c) { return std::pair(c.count, c.last); };
    return std::ranges::max_element(entry->second, {}, rank)->token;
  }
  return std::nullopt;
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

  const size_t prediction = generation_->request().prompt.size() + 1;
  const size_t prediction_end = prediction + generation_->request().prediction.size();
  const bool begins = generation_->emitted() == 0 && prediction_end > prediction;
  const auto [length, end] =
      begins ? SuffixAutomaton::Repeat{static_cast<size_t>(k), prediction} : known_.repeat();
  const size_t most = std::min(length, static_cast<size_t>(std::max(k, 0)));
  std::vector<TokenId> copy;
  for (size_t i = end; copy.size() < most; ++i) {
    const TokenId token = i < size ? text[i] : copy[i - size];
    if (token == kSeparator) break;
    copy.push_back(token);
  }
  if (end >= prediction && end < prediction_end) predicted_ = std::min(copy.size(), prediction_end - end);
  return PointMasses(copy, generation_->request().params.rule());
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
