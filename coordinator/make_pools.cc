#include "coordinator/make_pools.h"

#include <initializer_list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/link/check_server.h"

namespace outrider {
namespace {

absl::Status FirstError(std::initializer_list<absl::Status> checks) {
  for (const absl::Status& status : checks) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// An error names the flag.
template <class Pool>
absl::Status Assign(absl::StatusOr<std::unique_ptr<Pool>> created, absl::string_view flag,
                    std::unique_ptr<Pool>& pool) {
  if (created.ok()) pool = *std::move(created);
  return created.ok() ? absl::OkStatus()
                      : absl::InvalidArgumentError(absl::StrCat(flag, ": ", created.status().message()));
}

// Where no server is configured, one without an address is down.
template <class Protocol>
Metrics::ServersUp WhichAreUp(const ServerPool<Protocol>* pool) {
  if (pool == nullptr) return {{"", false}};
  Metrics::ServersUp up;
  for (const auto& server : pool->servers()) up[server->address] = server->link->up();
  if (up.empty()) up[""] = false;  // a name that stands for none yet
  return up;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Pools>> MakePools(GrpcContext& context, PoolsOptions options,
                                                 const Tokenizer& tokenizer,
                                                 std::function<void()> on_change) {
  auto result = std::make_unique<Pools>();
  Pools* const pools = result.get();
  const auto check_target = [pools, &tokenizer, mixed = options.mixed_numerics](const v1::ServerInfo& info) {
    const v1::ServerInfo* const others = pools->targets->info();
    return FirstError({CheckFingerprint(info, tokenizer), CheckWeights(info, others),
                       mixed ? absl::OkStatus() : CheckNumerics(info, others)});
  };
  // A draft that comes back may be another, as long as those that are there are alike: with its q, its
  // proposals are as good as any.
  const auto check_draft = [pools, &tokenizer](const v1::ServerInfo& info) {
    return FirstError({CheckPair(info, pools->targets->info()), CheckFingerprint(info, tokenizer),
                       CheckWeights(info, pools->drafts->info_of_any_up())});
  };
  const auto on_targets = [pools, on_change] {
    // They may be others than the drafts were compared with, if with any.
    if (pools->targets->up() && pools->drafts != nullptr) pools->drafts->CheckAgain();
    on_change();
  };
  const bool has_drafts = !options.drafts.addresses.empty();
  absl::Status status =
      Assign(TargetPool::Create(context, std::move(options.targets), check_target, on_targets), "--target",
             pools->targets);
  if (status.ok() && has_drafts) {
    status = Assign(DraftPool::Create(context, std::move(options.drafts), check_draft, on_change), "--draft",
                    pools->drafts);
  }
  if (!status.ok()) return status;
  return result;
}

void Report(const Pools& pools, Metrics& metrics) {
  metrics.SetTargets(WhichAreUp(pools.targets.get()));
  metrics.SetDrafts(WhichAreUp(pools.drafts.get()));
  metrics.SetDegraded(pools.drafts != nullptr && !pools.drafts->up());
}

}  // namespace outrider
