// The coordinator's targets and drafts: which servers may work together.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/text/tokenizer.h"
#include "coordinator/decode/metrics.h"
#include "coordinator/servers/server_pool.h"
#include "outrider/v1/sequence.pb.h"

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

// Whether a server's model reads and writes the tokens that `tokenizer` does. FAILED_PRECONDITION, as of the
// others, in words for an operator.
absl::Status CheckFingerprint(const v1::ServerInfo& info, const Tokenizer& tokenizer);

// Whether draft and target can speak of the same tokens, given that each passes CheckFingerprint. Their
// vocabularies may have different sizes. OK while there is no target, null, to compare with.
absl::Status CheckPair(const v1::ServerInfo& draft, const v1::ServerInfo* target);

// Whether a server has the weights of the others of its pool, null if none was met: a sequence may move to
// any of them, and the tokens of a request are from one model. What a server does not say is not compared.
absl::Status CheckWeights(const v1::ServerInfo& info, const v1::ServerInfo* others);

// Whether a target computes the same bits as the others of its pool, null if none was met, so that a greedy
// or coupled request has the same tokens wherever it is.
absl::Status CheckNumerics(const v1::ServerInfo& info, const v1::ServerInfo* others);

}  // namespace outrider
