// The processes that share a model. Each has a share of every layer's heads and inner columns, and they add
// up the outputs of their shares (Shoeybi et al., arXiv 1909.08053, section 3).
#pragma once

#include <ATen/ATen.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/engine/runner_options.h"
#include "common/engine/torch/step_runner.h"

// The header of this class adds ten seconds to the compilation of each file that includes it.
namespace c10d {
class ProcessGroupGloo;
}

namespace outrider::libtorch {

// Where the ranks of a model meet.
struct Rendezvous {
  std::string host;
  uint16_t port = 0;
};

// INVALID_ARGUMENT, naming the flag, unless it is HOST:PORT; IPv6 in brackets.
absl::StatusOr<Rendezvous> ParseRendezvous(const std::string& text);

// The functions below throw boost::system::system_error, and take the first address of the host.

// A socket that listens on this address only; c10d by itself listens on every address. The caller owns it.
int ListenAt(const Rendezvous& rendezvous);

// This machine's address on the route to the rendezvous, as text. Sends nothing.
std::string OwnAddressTowards(const Rendezvous& rendezvous);

// One rank's side of the group, over Gloo of c10d, and over NCCL between GPUs. All ranks make the same calls
// in the same order, and every call waits for the others, without a limit. Functions throw c10::Error or
// std::exception if a rank is gone. One thread.
class RankGroup {
 public:
  // Meets the other ranks, waiting up to five minutes for them. UNAVAILABLE, naming the rendezvous, if they
  // do not come or rank 0 cannot listen there. From then on rank 0 watches the others and they watch rank 0:
  // options.on_lost is called, from another thread, when one is gone. Call Join inside runner.InOrder.
  static absl::StatusOr<std::unique_ptr<RankGroup>> Join(const ParallelOptions& options, StepRunner& runner);

  ~RankGroup();

  int rank() const { return options_.rank; }
  int size() const { return options_.size; }

  // Rank 0 sends numbers to all others, which receive them.
  void Send(absl::Span<const int64_t> numbers);
  std::vector<int64_t> Receive();

  // The sum of the ranks' shares, float32.
  at::Tensor Sum(const at::Tensor& share);
  // On rank 0, the shares of all ranks, concatenated in the last dimension. All shares must have the same
  // shape. The result on other ranks is meaningless.
  at::Tensor Gather(const at::Tensor& share);
  // The smallest of the ranks' numbers.
  int64_t Least(int64_t number);

 private:
  class Watch;

  RankGroup(const ParallelOptions& options, const Rendezvous& rendezvous, StepRunner& runner);

  void Broadcast(const at::Tensor& tensor);

  const ParallelOptions options_;
  const c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
  std::unique_ptr<DeviceRanks> devices_;  // null on CPUs
  std::vector<std::unique_ptr<Watch>> watches_;
};

}  // namespace outrider::libtorch
