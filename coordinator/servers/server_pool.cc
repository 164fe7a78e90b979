#include "coordinator/servers/server_pool.h"

#include <limits>

#include "common/kv/prefix_hash.h"
#include "common/rpc/address.h"
#include "common/rpc/drafters.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

// The interval between attempts to resolve a name while none of its servers is connected.
constexpr auto kResolvePause = std::chrono::milliseconds(500);

// FNV-1a, because the id must be the same in every process.
uint64_t ServerId(const std::string& address) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char byte : address) hash = (hash ^ static_cast<uint8_t>(byte)) * 0x100000001b3;
  return hash;
}

void KeepCommonProposers(const v1::ServerInfo& info, v1::ServerInfo* common) {
  auto& proposers = *common->mutable_proposers();
  const auto is_lacking = [&info](const v1::ProposerInfo& each) {
    return FindProposer(info, each.proposer()) == nullptr;
  };
  proposers.erase(std::remove_if(proposers.begin(), proposers.end(), is_lacking), proposers.end());
  for (v1::ProposerInfo& each : proposers) {
    const v1::ProposerInfo& other = *FindProposer(info, each.proposer());
    each.set_max_draft_tokens(std::min(each.max_draft_tokens(), other.max_draft_tokens()));
    each.set_greedy(each.greedy() && other.greedy());
  }
}

constexpr size_t kAffinityBlocks = 2;

// How much a key prefers a server.
uint64_t Rank(uint64_t key, uint64_t id) {
  const uint64_t mixed = ExtendPrefixHash(key, static_cast<TokenId>(id));
  return ExtendPrefixHash(mixed, static_cast<TokenId>(id >> 32));
}

}  // namespace

int Place(std::span<const ServerView> servers, const PlacementRequest& request) {
  const auto can_be_taken = [&](int i) {
    return servers[i].usable && !servers[i].going_away && i != request.avoid;
  };
  RunningMean others(1);
  for (const ServerView& server : servers) {
    if (server.usable && !server.going_away && server.others >= 0) others.Observe(server.others);
  }
  const auto load_of = [&](const ServerView& server) {
    return server.sequences + (server.others < 0 ? others.mean(0) : server.others);
  };
  const int count = static_cast<int>(servers.size());
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < count; ++i) {
    if (can_be_taken(i)) least = std::min(least, load_of(servers[i]));
  }
  const uint64_t key = request.affinity != 0 ? request.affinity : request.tie;
  int best = -1;
  uint64_t best_rank = 0;
  for (int i = 0; i < count; ++i) {
    const double load = load_of(servers[i]);
    const bool cheap = request.affinity != 0 && load < kCheapSequences && load <= least + 1;
    if (!can_be_taken(i) || (load >= least + 1 && !cheap)) continue;
    const uint64_t rank = Rank(key, servers[i].id);
    if (best >= 0 && rank <= best_rank) continue;
    best = i;
    best_rank = rank;
  }
  if (best >= 0 || request.avoid < 0) return best;
  // No other server is left. The one that failed may serve again.
  return Place(servers, {.affinity = request.affinity, .tie = request.tie});
}

uint64_t PromptAffinity(std::span<const TokenId> prompt, int block_size) {
  const size_t tokens = kAffinityBlocks * static_cast<size_t>(block_size);
  return prompt.size() < tokens ? 0 : PrefixHash(prompt.first(tokens));
}

template <class Protocol>
absl::StatusOr<std::unique_ptr<ServerPool<Protocol>>> ServerPool<Protocol>::Create(
    GrpcContext& context, PoolOptions options, CheckServer check_server, std::function<void()> on_change) {
  std::unique_ptr<ServerPool> pool(
      new ServerPool(context, std::move(options), std::move(check_server), std::move(on_change)));
  for (const std::string& address : pool->options_.addresses) {
    std::optional<DnsName> dns = OUTRIDER_TRY(ParseDnsName(address));
    if (dns) {
      pool->names_.push_back(std::unique_ptr<Name>(new Name{*std::move(dns), Event(pool->executor_), {}}));
      continue;
    }
    OUTRIDER_TRY(CheckServerAddress(address));
    pool->Add(address, nullptr);
  }
  return pool;
}

template <class Protocol>
void ServerPool<Protocol>::Add(const std::string& address, const DnsName* name) {
  LinkOptions options = options_.link;
  options.address = address;
  if (name != nullptr) options.host = name->host;
  auto link = std::make_shared<TheLink>(context_, options, check_server_, [this] { OnChange(); });
  servers_.push_back(std::make_shared<Server>(
      Server{.address = address, .id = ServerId(address), .link = std::move(link), .name = name}));
}

template <class Protocol>
void ServerPool<Protocol>::Connect() {
  for (const auto& server : servers_) server->link->Connect();
  for (const auto& name : names_) {
    ++resolving_;
    asio::co_spawn(executor_, KeepResolving(*name), asio::detached);
  }
}

template <class Protocol>
std::shared_ptr<typename ServerPool<Protocol>::Server> ServerPool<Protocol>::Choose(
    Clock::time_point now, std::span<const TokenId> prompt, const std::string& fork_of,
    const std::shared_ptr<Server>& avoid) const {
  if (const auto home = homes_.find(fork_of); home != homes_.end()) {
    const std::shared_ptr<Server> server = home->second.lock();
    if (server != nullptr && server != avoid && server->usable(now)) return server;
  }
  PlacementRequest request{.tie = FreshBits()};
  if (info_) request.affinity = PromptAffinity(prompt, static_cast<int>(info_->block_size()));
  std::vector<ServerView> views;
  for (const auto& server : servers_) {
    if (server == avoid) request.avoid = static_cast<int>(views.size());
    views.push_back({.id = server->id,
                     .usable = server->usable(now),
                     .going_away = server->link->going_away(),
                     .sequences = server->sequences,
                     .others = server->link->pace().load_of_others().value_or(kUnknownLoad)});
    // A server that counted as hung is tried with one sequence first.
    if (!server->link->answers() && server->sequences > 0) views.back().usable = false;
  }
  int chosen = Place(views, request);
  for (size_t i = 0; chosen < 0 && i < views.size(); ++i) {
    if (servers_[i]->usable(now)) chosen = static_cast<int>(i);
  }
  return chosen < 0 ? nullptr : servers_[chosen];
}

template <class Protocol>
void ServerPool<Protocol>::OnChange() {
  DropGone();
  UpdateInfo();
  const auto can_take_over = std::ranges::count_if(
      servers_, [](const auto& server) { return server->link->up() && !server->link->going_away(); });
  for (const auto& server : servers_) {
    TheLink& link = *server->link;
    link.set_replaceable(can_take_over > (link.up() && !link.going_away() ? 1 : 0));
    if (link.up()) server->breaker.OnConnection(link.connections());
  }
  for (const auto& name : names_) {
    if (!IsReached(*name)) name->wake.Notify();
  }
  for (Event* event : waiting_) event->Notify();
  on_change_();
}

template <class Protocol>
void ServerPool<Protocol>::UpdateInfo() {
  std::optional<v1::ServerInfo> common;
  for (const auto& server : servers_) {
    const v1::ServerInfo* info = server->link->info();
    if (info == nullptr) continue;
    if (!common) {
      common = *info;
      continue;
    }
    // The smaller cache, in tokens: the sizes of the blocks may differ.
    const uint64_t tokens = std::min(uint64_t{common->kv_blocks()} * common->block_size(),
                                     uint64_t{info->kv_blocks()} * info->block_size());
    common->set_block_size(std::min(common->block_size(), info->block_size()));
    if (common->block_size() > 0) common->set_kv_blocks(static_cast<uint32_t>(tokens / common->block_size()));
    common->set_max_context(std::min(common->max_context(), info->max_context()));
    common->set_max_draft_tokens(std::min(common->max_draft_tokens(), info->max_draft_tokens()));
    common->set_max_tree_nodes(std::min(common->max_tree_nodes(), info->max_tree_nodes()));
    common->set_tree_row_invariant(common->tree_row_invariant() && info->tree_row_invariant());
    common->set_inexact_trees(common->inexact_trees() && info->inexact_trees());
    KeepCommonProposers(*info, &*common);
  }
  if (common) info_ = std::move(common);
}

template <class Protocol>
asio::awaitable<void> ServerPool<Protocol>::KeepResolving(Name& name) {
  while (!stopping_) {
    const auto addresses = co_await asio::co_spawn(
        options_.resolvers,
        [this, &name]() -> asio::awaitable<absl::StatusOr<std::vector<std::string>>> {
          co_return options_.resolve(name.dns);
        },
        asio::use_awaitable);
    if (stopping_) break;
    OnResolved(name, addresses);
    const Clock::time_point resolved = Clock::now();
    const auto next = [&] {
      return resolved + (IsReached(name)
                             ? options_.resolve_interval
                             : std::min<Clock::duration>(options_.resolve_interval, kResolvePause));
    };
    while (!stopping_ && Clock::now() < next()) co_await name.wake.Wait(next());
  }
  --resolving_;
}

template <class Protocol>
void ServerPool<Protocol>::OnResolved(Name& name, const absl::StatusOr<std::vector<std::string>>& addresses) {
  if (!addresses.ok()) {
    // The servers that the name resolved to before may still be there.
    if (name.problem != addresses.status()) {
      LogWarning(
          "not resolved",
          {{"server", Protocol::kName}, {"name", name.dns.host}, {"error", addresses.status().message()}});
    }
    name.problem = addresses.status();
    return;
  }
  name.problem = absl::OkStatus();
  for (const auto& server : servers_) {
    if (server->name != &name.dns) continue;
    server->is_listed = std::binary_search(addresses->begin(), addresses->end(), server->address);
  }
  for (const std::string& address : *addresses) {
    if (std::ranges::any_of(servers_, [&](const auto& server) { return server->address == address; }))
      continue;
    LogInfo("found", {{"server", Protocol::kName}, {"name", name.dns.host}, {"address", address}});
    Add(address, &name.dns);
    servers_.back()->link->Connect();
  }
  OnChange();
}

template <class Protocol>
void ServerPool<Protocol>::Describe(google::protobuf::RepeatedPtrField<v1::ServerState>* states) const {
  for (const auto& server : servers_) {
    const TheLink& link = *server->link;
    v1::ServerState* state = states->Add();
    state->set_role(Protocol::kName);
    state->set_address(server->address);
    state->set_up(link.up());
    state->set_going_away(link.going_away());
    state->set_sequences(static_cast<uint32_t>(server->sequences));
    state->set_load(link.pace().load());
    if (link.info() != nullptr) *state->mutable_info() = *link.info();
    if (!link.refusal().ok()) state->set_problem(std::string(link.refusal().message()));
  }
  for (const auto& name : names_) {
    if (name->problem.ok()) continue;
    v1::ServerState* state = states->Add();
    state->set_role(Protocol::kName);
    state->set_address(name->dns.host + ":" + name->dns.port);
    state->set_problem(std::string(name->problem.message()));
  }
}

template class ServerPool<TargetProtocol>;
template class ServerPool<DraftProtocol>;

}  // namespace outrider
