// The processes that share a model: each has a share of every layer's heads and inner columns, and they add
// up what these put out (Shoeybi et al., arXiv 1909.08053, section 3).
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/engine/runner_options.h"
#include "common/engine/torch/step_runner.h"

namespace outrider::libtorch {

// One rank's side of the group, over Gloo of c10d, and over NCCL between GPUs. All ranks make the same calls
// in the same order, and every call waits for the others, without a limit. Functions throw c10::Error or
// std::exception if a rank is gone. One thread.
class RankGroup {
 public:
  // Meets the other ranks, and waits for them for five minutes. UNAVAILABLE, naming the rendezvous, if they
  // do not come or it cannot be listened at. From then on rank 0 watches the others, which watch rank 0, and
  // options.on_lost is called. Inside runner.InOrder.
  static absl::StatusOr<std::unique_ptr<RankGroup>> Join(const ParallelOptions& options, StepRunner& runner);

  virtual ~RankGroup() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Rank 0 sends numbers to all others, which receive them.
  virtual void Send(absl::Span<const int64_t> numbers) = 0;
  virtual std::vector<int64_t> Receive() = 0;

  // The sum of the ranks' shares, float32.
  virtual at::Tensor Sum(const at::Tensor& share) = 0;
  // On rank 0 the shares of all ranks, which have the same shape, side by side in the last dimension. What it
  // returns on the others means nothing.
  virtual at::Tensor Gather(const at::Tensor& share) = 0;
  // The smallest number that a rank has.
  virtual int64_t Least(int64_t number) = 0;
};

}  // namespace outrider::libtorch
