// Lets items to the engine once the grammars that they need are compiled.
#pragma once

#include <cstdint>
#include <deque>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "common/engine/worker.h"
#include "common/grammar/grammar_cache.h"

namespace outrider {

// What an item does whose grammar is not compiled yet.
enum class UntilCompiled : uint8_t {
  kWait,       // as of a target, which decides what is emitted; it is refused if the grammar does not compile
  kGoWithout,  // as of a draft, which may propose what the target refuses, and is not to be late
};

// Items of one sequence keep their order: what comes after an item that waits, waits behind it. Thread-safe.
class GrammarGate {
 public:
  // `worker` outlives this. `grammars`, whose thread calls this, ends first. Without them none compiles.
  GrammarGate(Worker& worker, GrammarCache* grammars, UntilCompiled until_compiled)
      : worker_(worker), grammars_(grammars), until_compiled_(until_compiled) {}

  // Submits `item` to the worker, with `grammar` in its parameters unless that is null.
  void Submit(WorkItem item, const GrammarText* grammar);
  // Does the same with anything else that concerns a sequence, such as its release.
  void Do(const SequenceId& id, absl::AnyInvocable<void() &&> action);

 private:
  // Returns whether it goes on later: by Open, once its item is submitted.
  using Action = absl::AnyInvocable<bool()>;

  // Acts now, or after what waits of the sequence. With `holds`, what comes next waits until Open.
  void Enter(const SequenceId& id, bool holds, Action action);
  // Whether anything of the sequence waits.
  bool IsWaiting(const SequenceId& id);
  // Goes on with what waited.
  void Open(const SequenceId& id);

  Worker& worker_;
  GrammarCache* const grammars_;
  const UntilCompiled until_compiled_;
  absl::Mutex mutex_;
  // What waits, by the sequence of which an item's grammar is compiled.
  absl::flat_hash_map<SequenceId, std::deque<Action>> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace outrider
