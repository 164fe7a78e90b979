#include "common/grammar/grammar_cache.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/status/status.h"

namespace outrider {

GrammarCache::GrammarCache(std::function<GrammarVocabulary()> vocabulary, const GrammarCacheOptions& options)
    : vocabulary_(std::move(vocabulary)), options_(options), thread_([this] { Run(); }) {}

GrammarCache::~GrammarCache() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void GrammarCache::Get(const GrammarText& text, Done done) {
  Result result;
  {
    const std::lock_guard lock(mutex_);
    if (const auto known = std::ranges::find(known_, text, &Known::text); known != known_.end()) {
      known_.splice(known_.begin(), known_, known);
      result = known->result;
    } else if (const auto other = std::ranges::find(waiting_, text, &Waiting::text);
               other != waiting_.end()) {
      other->done.push_back(std::move(done));
      return;
    } else if (waiting_.size() < options_.max_waiting) {
      waiting_.push_back({text, {}});
      waiting_.back().done.push_back(std::move(done));
      changed_.notify_one();
      return;
    } else {
      result = absl::ResourceExhaustedError("too many grammars wait to be compiled");
    }
  }
  done(result);
}

void GrammarCache::Run() {
  std::optional<GrammarVocabulary> vocabulary;
  while (true) {
    GrammarText text;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return ending_ || !waiting_.empty(); });
      if (ending_) break;
      text = waiting_.front().text;
    }
    if (!vocabulary) vocabulary = vocabulary_();
    const Result result = Grammar::Compile(text, *vocabulary);
    Waiting waiting;
    {
      const std::lock_guard lock(mutex_);
      Keep(text, result);
      waiting = std::move(waiting_.front());
      waiting_.pop_front();
    }
    for (Done& done : waiting.done) done(result);
  }
  std::deque<Waiting> left;
  {
    const std::lock_guard lock(mutex_);
    left.swap(waiting_);
  }
  for (Waiting& waiting : left) {
    for (Done& done : waiting.done) done(absl::UnavailableError("the server ends"));
  }
}

void GrammarCache::Keep(const GrammarText& text, const Result& result) {
  const size_t bytes = text.text.size() + (result.ok() ? (*result)->bytes() : 0);
  if (bytes > options_.max_bytes) return;
  known_.push_front({text, result, bytes});
  bytes_ += bytes;
  while (bytes_ > options_.max_bytes) {
    bytes_ -= known_.back().bytes;
    known_.pop_back();
  }
}

}  // namespace outrider
