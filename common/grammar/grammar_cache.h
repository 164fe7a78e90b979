// Compiles grammars once for all requests that name them.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "common/grammar/grammar.h"

namespace outrider {

struct GrammarCacheOptions {
  size_t max_bytes = size_t{256} << 20;  // of grammars that are kept; one that is larger than this is not
  size_t max_waiting = 64;               // grammars that wait to be compiled
};

// Keeps the grammars that were used last. Errors are kept too: the same text is refused without another try.
// Thread-safe.
class GrammarCache {
 public:
  using Result = absl::StatusOr<std::shared_ptr<const Grammar>>;
  using Done = absl::AnyInvocable<void(const Result&)>;

  // `vocabulary` is called once, on the thread that compiles, for the first grammar.
  explicit GrammarCache(std::function<GrammarVocabulary()> vocabulary,
                        const GrammarCacheOptions& options = {});
  // Compiles what has begun to its end. What waits gets UNAVAILABLE.
  ~GrammarCache();

  // Calls `done` with the grammar or Grammar::Compile's error: on this thread, before it returns, if either
  // is known, else on the thread that compiles. RESOURCE_EXHAUSTED, at once, if max_waiting others wait.
  // `done` must not block.
  void Get(const GrammarText& text, Done done);

 private:
  struct Known {
    GrammarText text;
    Result result;
    size_t bytes;
  };
  struct Waiting {
    GrammarText text;
    std::vector<Done> done;
  };

  void Run();
  // Under mutex_.
  void Keep(const GrammarText& text, const Result& result);

  const std::function<GrammarVocabulary()> vocabulary_;
  const GrammarCacheOptions options_;
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::list<Known> known_;       // the one that was used last is first
  size_t bytes_ = 0;             // of all of them
  std::deque<Waiting> waiting_;  // the first is being compiled
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace outrider
