#include "coordinator/drafters/ngram_table.h"

#include <algorithm>

namespace outrider {

NgramTable::Context NgramTable::Last(std::span<const TokenId> tokens, int length) {
  Context context;
  context.fill(-1);
  std::copy(tokens.end() - length, tokens.end(), context.end() - length);
  return context;
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
    const auto best = std::max_element(entry->second.begin(), entry->second.end(),
                                       [](const Continuation& a, const Continuation& b) {
                                         return a.count != b.count ? a.count < b.count : a.last < b.last;
                                       });
    return best->token;
  }
  return std::nullopt;
}

size_t NgramTable::size() const {
  size_t size = 0;
  for (const auto& [context, known] : continuations_) size += known.size();
  return size;
}

}  // namespace outrider
