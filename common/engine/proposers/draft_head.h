// What turns a proposer's states into logits: the target's head, or one of its own.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/engine/batch.h"
#include "common/engine/matrix.h"
#include "common/engine/model.h"
#include "common/spec/types.h"

namespace outrider {

// Not thread-safe.
class DraftHead {
 public:
  // A head of its own: [tokens, hidden], for these tokens, which ascend, of a vocabulary. The others get
  // logits so low that their q is 0 (SpreadLogits), as long as a request's masks leave one of these. What is
  // proposed is sampled from that q, so it stays exact.
  struct Own {
    std::unique_ptr<Matrix> matrix;
    std::vector<TokenId> tokens;                   // empty: it is of all
    int vocab = 0;                                 // the target's
    std::optional<double> softcap = std::nullopt;  // DecoderSpec::final_softcap
  };

  // The target's; it must outlive this.
  explicit DraftHead(Model& target) : target_(&target) {}
  explicit DraftHead(Own own) : own_(std::move(own)) {}

  // Logits of states [rows, hidden], valid until the next call. An error means that the device failed.
  absl::StatusOr<LogitsView> Project(absl::Span<const float> states, int rows);

 private:
  Model* target_ = nullptr;  // null: `own_`
  Own own_;
  std::vector<float> few_, all_;
};

}  // namespace outrider
