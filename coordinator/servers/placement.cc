#include "coordinator/servers/placement.h"

#include <algorithm>
#include <limits>

#include "common/kv/prefix_hash.h"

namespace outrider {
namespace {

constexpr size_t kAffinityBlocks = 2;

// The mean over servers that reported it and may be taken.
double MeanOfOthers(std::span<const ServerView> servers) {
  double sum = 0;
  int count = 0;
  for (const ServerView& server : servers) {
    if (!server.usable || server.going_away || server.others < 0) continue;
    sum += server.others;
    ++count;
  }
  return count > 0 ? sum / count : 0;
}

// How much a key prefers a server.
uint64_t Rank(uint64_t key, uint64_t id) {
  const uint64_t mixed = ExtendPrefixHash(key, static_cast<TokenId>(id));
  return ExtendPrefixHash(mixed, static_cast<TokenId>(id >> 32));
}

}  // namespace

int Place(std::span<const ServerView> servers, const PlacementRequest& request) {
  const auto can_be_taken = [&](int i) {
    const ServerView& server = servers[static_cast<size_t>(i)];
    return server.usable && !server.going_away && i != request.avoid;
  };
  const double mean = MeanOfOthers(servers);
  const auto load_of = [&](const ServerView& server) {
    return server.sequences + (server.others < 0 ? mean : server.others);
  };
  const int count = static_cast<int>(servers.size());
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < count; ++i) {
    if (can_be_taken(i)) least = std::min(least, load_of(servers[static_cast<size_t>(i)]));
  }
  const uint64_t key = request.affinity != 0 ? request.affinity : request.tie;
  int best = -1;
  uint64_t best_rank = 0;
  for (int i = 0; i < count; ++i) {
    const ServerView& server = servers[static_cast<size_t>(i)];
    const double load = load_of(server);
    const bool cheap = request.affinity != 0 && load < kCheapSequences && load <= least + 1;
    if (!can_be_taken(i) || (load >= least + 1 && !cheap)) continue;
    const uint64_t rank = Rank(key, server.id);
    if (best < 0 || rank > best_rank) {
      best = i;
      best_rank = rank;
    }
  }
  if (best >= 0 || request.avoid < 0) return best;
  // A server that failed once may serve again.
  return Place(servers, {.affinity = request.affinity, .tie = request.tie});
}

uint64_t PromptAffinity(std::span<const TokenId> prompt, int block_size) {
  const size_t tokens = kAffinityBlocks * static_cast<size_t>(block_size);
  return prompt.size() < tokens ? 0 : PrefixHash(prompt.first(tokens));
}

}  // namespace outrider
