#include "common/serve/grammar_gate.h"

#include <memory>
#include <utility>

#include "common/grammar/late_grammar.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

void SetGrammar(std::shared_ptr<const TokenMaskSource> grammar, WorkItem& item) {
  auto params = std::make_shared<SequenceParams>(*item.params);
  params->sampling.grammar = std::move(grammar);
  item.params = std::move(params);
}

}  // namespace

void GrammarGate::Submit(WorkItem item, const GrammarText* grammar) {
  const SequenceId id = item.id;
  if (grammar == nullptr) {
    if (!IsWaiting(id)) return worker_.Submit(std::move(item));
    return RunInOrder(id, [this, item = std::move(item)]() mutable { worker_.Submit(std::move(item)); });
  }
  if (until_compiled_ == UntilCompiled::kGoWithout) {
    if (grammars_ != nullptr) {
      const auto late = std::make_shared<LateGrammar>();
      grammars_->Get(*grammar, [late](const GrammarCache::Result& result) {
        if (result.ok()) late->Set(*result);
      });
      SetGrammar(late, item);
    }
    return worker_.Submit(std::move(item));
  }
  Enter(id, /*holds=*/true, [this, id, text = *grammar, item = std::move(item)]() mutable {
    auto submit = [this, id, item = std::move(item)](const GrammarCache::Result& result) mutable {
      if (result.ok()) SetGrammar(*result, item);
      item.invalid.Update(result.status());
      worker_.Submit(std::move(item));
      Open(id);
    };
    if (grammars_ == nullptr) {
      submit(FieldError("grammar", "none", "this server has no tokenizer"));
    } else {
      grammars_->Get(text, std::move(submit));
    }
    return true;
  });
}

bool GrammarGate::IsWaiting(const SequenceId& id) {
  absl::MutexLock lock(&mutex_);
  return waiting_.contains(id);
}

void GrammarGate::RunInOrder(const SequenceId& id, absl::AnyInvocable<void() &&> action) {
  Enter(id, /*holds=*/false, [action = std::move(action)]() mutable {
    std::move(action)();
    return false;
  });
}

void GrammarGate::Enter(const SequenceId& id, bool holds, Action action) {
  {
    absl::MutexLock lock(&mutex_);
    if (const auto waiting = waiting_.find(id); waiting != waiting_.end()) {
      waiting->second.push_back(std::move(action));
      return;
    }
    if (holds) waiting_.try_emplace(id);
  }
  action();
}

void GrammarGate::Open(const SequenceId& id) {
  while (true) {
    Action action;
    {
      absl::MutexLock lock(&mutex_);
      const auto waiting = waiting_.find(id);
      if (waiting->second.empty()) {
        waiting_.erase(waiting);
        return;
      }
      action = std::move(waiting->second.front());
      waiting->second.pop_front();
    }
    if (action()) return;
  }
}

}  // namespace outrider
