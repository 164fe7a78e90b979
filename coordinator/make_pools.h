// The coordinator's targets and drafts: which servers may work together.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "common/text/tokenizer.h"
#include "coordinator/pools/server_pool.h"
#include "coordinator/rounds/metrics.h"

namespace outrider {

struct Pools {
  std::unique_ptr<TargetPool> targets;
  std::unique_ptr<DraftPool> drafts;  // null: none is configured
};

struct PoolsOptions {
  PoolOptions targets;
  PoolOptions drafts;  // without addresses there is no draft service
  bool mixed_numerics = false;
};

// `on_change` is called when a server can be used, or cannot any more. The tokenizer outlives the result.
// INVALID_ARGUMENT, naming the flag, for an address that cannot be one.
absl::StatusOr<std::unique_ptr<Pools>> MakePools(GrpcContext& context, PoolsOptions options,
                                                 const Tokenizer& tokenizer, std::function<void()> on_change);

// Says which servers can be used.
void Report(const Pools& pools, Metrics& metrics);

}  // namespace outrider
