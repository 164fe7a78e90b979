// Made-up steps that a model runs while it is loaded, so that no request pays for a first step: loading
// kernels, and capturing graphs. Runs on the host, without CUDA.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "common/engine/batch.h"
#include "common/engine/sequence_params.h"

namespace outrider::cuda {

// Sequences of equal size, and the work on them.
struct WarmUpStep {
  int sequences = 1;
  int rows = 1;    // of each
  int length = 1;  // of each, its rows included
  enum class Work { kLogits, kVerify, kPropose } work = Work::kLogits;
  int draft_tokens = 0;  // of a proposal; a verification's draft is all rows but the first
};

// The limits of a model.
struct WarmUpLimits {
  int rows = 0;       // of a step
  int positions = 0;  // of a sequence
};

// One step of each kind of launch: with tasks of either kind and without, of many rows, and with attention
// whose results are merged. Smaller if the limits require it.
std::vector<WarmUpStep> DirectSteps(const WarmUpLimits& limits);

// The steps of one stream and of eight, of a target and of a draft, with K from 0 to 8 and up to 1024
// positions, as far as the limits allow. The last of them has the most kernels.
std::vector<WarmUpStep> CommonSteps(const WarmUpLimits& limits);

// A step as a batch. The cached tokens are made up too: all of them are in block 0.
class MadeUpBatch {
 public:
  MadeUpBatch(const WarmUpStep& step, int block_size);
  MadeUpBatch(const MadeUpBatch&) = delete;
  MadeUpBatch& operator=(const MadeUpBatch&) = delete;

  absl::Span<const SequenceRows> rows() const { return rows_; }

 private:
  SequenceParams params_;
  std::vector<TokenId> tokens_;
  std::vector<BlockId> blocks_;
  std::vector<ProposalNode> draft_;
  std::vector<DeviceTask> tasks_;
  std::vector<SequenceRows> rows_;
};

}  // namespace outrider::cuda
