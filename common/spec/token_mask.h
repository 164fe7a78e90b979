// Masks the tokens that may not follow a text, if that depends on all of it: a grammar (common/grammar).
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
  // The cost grows with the tokens by which `output` differs from that of the last call. If `output` itself
  // is not allowed, nothing is removed: a draft may propose a token that the target gives no probability, and
  // the tokens after it are never emitted.
  virtual void Apply(std::span<const TokenId> output, std::span<float> row) = 0;

  // Returns a mask in the same state.
  virtual std::unique_ptr<TokenMask> Copy() const = 0;
};

// Makes masks that begin with an empty text. Immutable; thread-safe.
class TokenMaskSource {
 public:
  virtual ~TokenMaskSource() = default;
  virtual std::unique_ptr<TokenMask> NewMask() const = 0;
};

// A copyable TokenMask; null by default.
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
