#include "coordinator/pools.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

// Empty if no server is configured.
template <class Protocol>
Metrics::ServersUp WhichAreUp(const ServerPool<Protocol>* pool) {
  if (pool == nullptr) return {};
  Metrics::ServersUp up;
  for (const auto& server : pool->servers()) up[server->address] = server->link->up();
  if (up.empty()) up[""] = false;  // no DNS name resolves to a server
  return up;
}

std::string Hex(uint64_t value) { return absl::StrCat(absl::Hex(value, absl::kZeroPad16)); }

std::string Fingerprints(uint64_t one, uint64_t other) {
  return absl::StrCat(" (fingerprints ", Hex(one), " and ", Hex(other), ")");
}

}  // namespace

std::vector<DraftPool*> Pools::draft_pools() const {
  std::vector<DraftPool*> pools;
  for (const auto* pool : {&drafts, &second_drafts}) {
    if (*pool != nullptr) pools.push_back(pool->get());
  }
  return pools;
}

absl::StatusOr<std::unique_ptr<Pools>> MakePools(GrpcContext& context, PoolOptions targets,
                                                 PoolOptions drafts, PoolOptions second_drafts,
                                                 bool mixed_numerics, const Tokenizer& tokenizer,
                                                 std::function<void()> on_change) {
  auto result = std::make_unique<Pools>();
  Pools* const pools = result.get();
  const auto check_target = [pools, &tokenizer, mixed_numerics](const v1::ServerInfo& info) {
    const v1::ServerInfo* const others = pools->targets->info();
    absl::Status status = CheckFingerprint(info, tokenizer);
    status.Update(CheckWeights(info, others));
    if (!mixed_numerics) status.Update(CheckNumerics(info, others));
    return status;
  };
  const auto error = [](absl::string_view flag, const absl::Status& status) {
    return Invalid(flag, ": ", status.message());
  };
  auto target_pool = TargetPool::Create(context, std::move(targets), check_target, on_change);
  if (!target_pool.ok()) return error("--target", target_pool.status());
  pools->targets = *std::move(target_pool);
  const auto make_drafts = [&](absl::string_view flag, PoolOptions options,
                               std::unique_ptr<DraftPool>& made) -> absl::Status {
    if (options.addresses.empty()) return absl::OkStatus();
    // Drafts may change their weights as long as all that are up agree: each proposal carries its own q.
    const auto check = [&made, &tokenizer](const v1::ServerInfo& info) {
      absl::Status status = CheckFingerprint(info, tokenizer);
      status.Update(CheckWeights(info, made->info_of_any_up()));
      return status;
    };
    auto pool = DraftPool::Create(context, std::move(options), check, on_change);
    if (!pool.ok()) return error(flag, pool.status());
    made = *std::move(pool);
    return absl::OkStatus();
  };
  OUTRIDER_TRY(make_drafts("--draft", std::move(drafts), pools->drafts));
  OUTRIDER_TRY(make_drafts("--second-draft", std::move(second_drafts), pools->second_drafts));
  return result;
}

void ReportKvUsed(const TargetPool& targets, Metrics& metrics) {
  double used = 0, up = 0;
  for (const auto& server : targets.servers()) {
    if (!server->link->up()) continue;
    used += server->link->kv_used();
    ++up;
  }
  metrics.SetKvUsed(up > 0 ? used / up : 0);
}

void Report(const Pools& pools, Metrics& metrics) {
  metrics.SetTargets(WhichAreUp(pools.targets.get()));
  Metrics::ServersUp drafts = WhichAreUp(pools.drafts.get());
  drafts.merge(WhichAreUp(pools.second_drafts.get()));
  metrics.SetDrafts(drafts);
  ReportKvUsed(*pools.targets, metrics);
  metrics.SetDegraded(pools.drafts != nullptr && !pools.drafts->up());
}

absl::Status CheckFingerprint(const v1::ServerInfo& info, const Tokenizer& tokenizer) {
  const std::vector<TokenId> eos(info.eos_ids().begin(), info.eos_ids().end());
  const uint64_t expected =
      ModelFingerprint(tokenizer.Fingerprint(), static_cast<int>(info.vocab_size()), eos);
  if (info.fingerprint() == expected) return absl::OkStatus();
  const int theirs = static_cast<int>(info.vocab_size());
  const int ours = tokenizer.vocab_size();
  return absl::FailedPreconditionError(absl::StrCat(
      info.model(), " has another tokenizer than the coordinator",
      theirs == ours ? absl::StrCat(", though both have ", ours, " tokens")
                     : absl::StrCat(": its vocabulary has ", theirs, " tokens, the coordinator's ", ours),
      Fingerprints(info.fingerprint(), expected)));
}

absl::Status CheckWeights(const v1::ServerInfo& info, const v1::ServerInfo* others) {
  if (others == nullptr || info.weights_hash() == 0 || others->weights_hash() == 0) return absl::OkStatus();
  if (info.weights_hash() == others->weights_hash()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      info.model(), " has other weights than those that were met first (hashes ", Hex(info.weights_hash()),
      " and ", Hex(others->weights_hash()), "); a coordinator that is started again takes it"));
}

absl::Status CheckNumerics(const v1::ServerInfo& info, const v1::ServerInfo* others) {
  if (others == nullptr || info.numerics().empty() || others->numerics().empty()) return absl::OkStatus();
  if (info.numerics() == others->numerics()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(info.model(), " computes other bits than those that were met first (", info.numerics(),
                   ", and ", others->numerics(), "); --mixed-numerics takes it all the same"));
}

}  // namespace outrider
