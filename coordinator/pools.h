// The coordinator's targets and drafts: which servers may work together.
#pragma once

#include <functional>
#include <memory>

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

// Without addresses of drafts there is no draft service. `on_change` is called when a server becomes usable,
// or unusable. The tokenizer outlives the result. INVALID_ARGUMENT, naming the flag, for what is no address.
absl::StatusOr<std::unique_ptr<Pools>> MakePools(GrpcContext& context, PoolOptions targets,
                                                 PoolOptions drafts, bool mixed_numerics,
                                                 const Tokenizer& tokenizer, std::function<void()> on_change);

void Report(const Pools& pools, Metrics& metrics);
// The part of it that changes with each step of a target.
void ReportKvUsed(const TargetPool& targets, Metrics& metrics);

// OK if the server's model uses the tokens of `tokenizer`; draft and target then agree on them. Their
// vocabularies may differ in size, and their texts in what ends them: the target's ids decide. Like the
// checks below, it fails with FAILED_PRECONDITION and a message for operators.
absl::Status CheckFingerprint(const v1::ServerInfo& info, const Tokenizer& tokenizer);

// OK if the server has the weights of the others of its pool (null: none was met): a sequence may move to any
// of them, and the tokens of a request come from one model. What a server does not say is not compared.
absl::Status CheckWeights(const v1::ServerInfo& info, const v1::ServerInfo* others);

// OK if the target computes the same bits as the others of its pool (null: none was met), so that a greedy or
// coupled request gets the same tokens on any of them.
absl::Status CheckNumerics(const v1::ServerInfo& info, const v1::ServerInfo* others);

}  // namespace outrider
