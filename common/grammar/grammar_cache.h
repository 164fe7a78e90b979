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
  size_t max_bytes = size_t{256} << 20;  // of all kept grammars; a larger one is not kept
  size_t max_waiting = 64;               // grammars that wait for compilation or are being compiled
};

// Keeps the most recently used grammars. Keeps errors too: the same text is refused without another try.
// Thread-safe.
class GrammarCache {
 public:
  using Result = absl::StatusOr<std::shared_ptr<const Grammar>>;
  using Done = absl::AnyInvocable<void(const Result&)>;

  // Calls `vocabulary` once, on the compiling thread, for the first grammar.
  explicit GrammarCache(std::function<GrammarVocabulary()> vocabulary,
                        const GrammarCacheOptions& options = {});
  // Finishes the grammar that is being compiled. The waiting ones get UNAVAILABLE.
  ~GrammarCache();

  // Calls `done` with the grammar or Grammar::Compile's error. If the result is known, calls it on this
  // thread before returning, else on the compiling thread. RESOURCE_EXHAUSTED, at once, if max_waiting others
  // wait. `done` must not block.
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
  // Requires mutex_.
  void Keep(const GrammarText& text, const Result& result);

  const std::function<GrammarVocabulary()> vocabulary_;
  const GrammarCacheOptions options_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::list<Known> known_;       // most recently used first
  size_t bytes_ = 0;             // of all grammars in known_
  std::deque<Waiting> waiting_;  // the first is being compiled
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace outrider
