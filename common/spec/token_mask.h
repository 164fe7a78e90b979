// Which tokens may follow a text, where that depends on all of it: a grammar (common/grammar).
#pragma once

#include <memory>
#include <span>
#include <utility>

#include "common/spec/types.h"

namespace outrider {

// Follows one text. One thread at a time.
class TokenMask {
 public:
  virtual ~TokenMask() = default;

  // Sets the logits of the tokens that may not follow `output`, the tokens after the prompt, to -infinity.
  // The cost is that of the tokens by which `output` differs from the last one. Where `output` is none that
  // may be, nothing is removed: a draft may propose what the target gives no probability, and what follows
  // such a token is never emitted.
  virtual void Apply(std::span<const TokenId> output, std::span<float> row) = 0;

  // One that stands where this one does.
  virtual std::unique_ptr<TokenMask> Copy() const = 0;
};

// Makes masks that begin with an empty text. Immutable; thread-safe.
class TokenMaskSource {
 public:
  virtual ~TokenMaskSource() = default;
  virtual std::unique_ptr<TokenMask> NewMask() const = 0;
};

// A mask as a value; none by default.
class AnyTokenMask {
 public:
  AnyTokenMask() = default;
  explicit AnyTokenMask(std::unique_ptr<TokenMask> mask) : mask_(std::move(mask)) {}
  AnyTokenMask(const AnyTokenMask& other) : mask_(other.mask_ == nullptr ? nullptr : other.mask_->Copy()) {}
  AnyTokenMask(AnyTokenMask&&) = default;
  AnyTokenMask& operator=(AnyTokenMask other) {
    mask_ = std::move(other.mask_);
    return *this;
  }

  TokenMask* get() const { return mask_.get(); }

 private:
  std::unique_ptr<TokenMask> mask_;
};

}  // namespace outrider
