// The coordinator's targets and drafts: which servers may work together.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/text/tokenizer.h"
#include "coordinator/decode/metrics.h"
#include "coordinator/servers/server_pool.h"
#include "outrider/v1/sequence.pb.h"

namespace outrider {

struct Pools {
  std::unique_ptr<TargetPool> targets;
  std::unique_ptr<DraftPool> drafts;  // null: none is configured
  std::unique_ptr<DraftPool> second_drafts;

  // Those of the two that are configured.
  std::vector<DraftPool*> draft_pools() const;
};

// Makes no draft pool without addresses. Calls `on_change` when a server may have become usable or
// unusable. The tokenizer outlives the result. INVALID_ARGUMENT, naming the flag, for a malformed address.
absl::StatusOr<std::unique_ptr<Pools>> MakePools(GrpcContext& context, PoolOptions targets,
                                                 PoolOptions drafts, PoolOptions second_drafts,
                                                 bool mixed_numerics, const Tokenizer& tokenizer,
                                                 std::function<void()> on_change);

void Report(const Pools& pools, Metrics& metrics);
// The part of Report that changes with each step of a target.
void ReportKvUsed(const TargetPool& targets, Metrics& metrics);

// OK if the server's model uses the tokens of `tokenizer`, so that draft and target agree on them. Their
// vocabularies may differ in size, and they may have different EOS ids: the target's ids decide. Like the
// checks below, it fails with FAILED_PRECONDITION and a message for operators.
absl::Status CheckFingerprint(const v1::ServerInfo& info, const Tokenizer& tokenizer);

// OK if the server has the same weights as the others of its pool (null: none was met). A sequence may move
// to any of them, and all tokens of a request come from one model. An unknown hash is not compared.
absl::Status CheckWeights(const v1::ServerInfo& info, const v1::ServerInfo* others);

// OK if the target computes the same bits as the others of its pool (null: none was met), so that a greedy or
// coupled request gets the same tokens on any of them.
absl::Status CheckNumerics(const v1::ServerInfo& info, const v1::ServerInfo* others);

}  // namespace outrider
