// Passes items to the engine once the grammars that they need are compiled.
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

// What to do with an item whose grammar is not compiled yet.
enum class UntilCompiled : uint8_t {
  kWait,       // for a target, which decides what is emitted; refused if the grammar does not compile
  kGoWithout,  // for a draft, which must not be late; the target rejects what the grammar forbids
};

// Keeps the items of a sequence in order: those that come after a waiting item wait behind it. Thread-safe.
class GrammarGate {
 public:
  // `worker` must outlive this. `grammars`, whose thread calls this, must end first; null: none compiles.
  GrammarGate(Worker& worker, GrammarCache* grammars, UntilCompiled until_compiled)
      : worker_(worker), grammars_(grammars), until_compiled_(until_compiled) {}

  // Submits `item` to the worker, with `grammar` in its parameters unless that is null.
  void Submit(WorkItem item, const GrammarText* grammar);
  // Runs `action`, such as a sequence's release, in order with the items of the sequence.
  void RunInOrder(const SequenceId& id, absl::AnyInvocable<void() &&> action);

 private:
  // Returns whether the sequence stays held, until the item is submitted and Open is called.
  using Action = absl::AnyInvocable<bool()>;

  // Acts now, or after the sequence's waiting actions. With `holds`, later actions wait until Open.
  void Enter(const SequenceId& id, bool holds, Action action);
  // Whether the sequence is held, so that its actions wait.
  bool IsWaiting(const SequenceId& id);
  // Runs the sequence's waiting actions, until one holds the sequence again.
  void Open(const SequenceId& id);

  Worker& worker_;
  GrammarCache* const grammars_;
  const UntilCompiled until_compiled_;
  absl::Mutex mutex_;
  // The waiting actions of each sequence that waits for a grammar to be compiled.
  absl::flat_hash_map<SequenceId, std::deque<Action>> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace outrider
