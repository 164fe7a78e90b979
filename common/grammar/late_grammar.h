// A grammar that may arrive later.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include "common/spec/token_mask.h"

namespace outrider {

// Its masks remove nothing until it is set. For drafts, whose q is what they sample from. Thread-safe.
class LateGrammar final : public TokenMaskSource, public std::enable_shared_from_this<LateGrammar> {
 public:
  void Set(std::shared_ptr<const TokenMaskSource> source) {
    const std::lock_guard lock(mutex_);
    source_ = std::move(source);
  }

  std::unique_ptr<TokenMask> NewMask() const override { return std::make_unique<Mask>(shared_from_this()); }

 private:
  class Mask final : public TokenMask {
   public:
    explicit Mask(std::shared_ptr<const LateGrammar> grammar) : grammar_(std::move(grammar)) {}

    void Apply(std::span<const TokenId> output, std::span<float> row) override {
      if (mask_.get() == nullptr) {
        const std::shared_ptr<const TokenMaskSource> source = grammar_->source();
        if (source == nullptr) return;
        mask_ = AnyTokenMask(source->NewMask());
      }
      mask_.get()->Apply(output, row);
    }
    std::unique_ptr<TokenMask> Copy() const override { return std::make_unique<Mask>(*this); }

   private:
    const std::shared_ptr<const LateGrammar> grammar_;
    AnyTokenMask mask_;  // null until the grammar is set
  };

  std::shared_ptr<const TokenMaskSource> source() const {
    const std::lock_guard lock(mutex_);
    return source_;
  }

  mutable std::mutex mutex_;
  std::shared_ptr<const TokenMaskSource> source_;  // under mutex_
};

}  // namespace outrider
