// What happens to the pools of bench_pools: requests that come, servers that fail or are replaced. All of it
// is drawn from a seed beforehand, so that every way of placing meets the same.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "coordinator/servers/placement.h"

namespace outrider {

struct PoolsWorkload {
  int targets = 100, drafts = 1000, coordinators = 20;
  double seconds = 30;   // simulated
  double rate = 1000;    // requests a second, Poisson
  double delay = 0.001;  // seconds from a server's answer to the arrival of the next item at a server
  double failures = 1;   // servers a second, of all, that die; as many are told to end
  uint64_t seed = 1;
};

struct SimulatedRequest {
  double at = 0;  // seconds
  int coordinator = 0;
  int prefix = -1;        // which one it shares with others; -1: none
  uint64_t affinity = 0;  // PromptAffinity
  int own_tokens = 0;     // of the prompt, after the shared prefix
  int rounds = 0;
};

struct Outage {
  double at = 0;  // seconds
  bool announced = false;
  int role = 0;
  int server = 0;
};

inline constexpr int kSharedTokens = 512;      // in a shared prefix
inline constexpr int kTokensPerRound = 3;      // accepted and one more
inline constexpr int kPrefixes = 2000;         // shared ones
inline constexpr double kShares = 0.7;         // of the requests have a shared prefix
inline constexpr double kMeanRounds = 50;      // of a request; geometric
inline constexpr double kMeanOwnTokens = 100;  // geometric

// By arrival. Shared prefixes are used as Zipf's law has it, with exponent 1.
inline std::vector<SimulatedRequest> DrawRequests(const PoolsWorkload& workload) {
  std::mt19937_64 random(workload.seed);
  std::exponential_distribution<double> pause(workload.rate);
  std::uniform_int_distribution<int> coordinator(0, workload.coordinators - 1);
  std::geometric_distribution<int> own_tokens(1 / kMeanOwnTokens), rounds(1 / kMeanRounds);
  std::bernoulli_distribution shares(kShares);
  std::vector<double> weights;
  for (int i = 0; i < kPrefixes; ++i) weights.push_back(1.0 / (i + 1));
  std::discrete_distribution<int> prefix(weights.begin(), weights.end());
  std::vector<SimulatedRequest> requests;
  for (double at = pause(random); at < workload.seconds; at += pause(random)) {
    SimulatedRequest request;
    request.at = at;
    request.coordinator = coordinator(random);
    if (shares(random)) request.prefix = prefix(random);
    request.own_tokens = 1 + own_tokens(random);
    request.rounds = 1 + rounds(random);
    // As the first tokens of a prompt have it: those of the prefix, or the request's own.
    const int first = request.prefix >= 0 ? request.prefix : kPrefixes + static_cast<int>(requests.size());
    request.affinity = PromptAffinity(std::vector<TokenId>(kSharedTokens, first), /*block_size=*/16);
    requests.push_back(request);
  }
  return requests;
}

// By time.
inline std::vector<Outage> DrawOutages(const PoolsWorkload& workload) {
  std::mt19937_64 random(workload.seed + 1);
  std::uniform_int_distribution<int> any(0, workload.targets + workload.drafts - 1);
  std::vector<Outage> outages;
  if (workload.failures <= 0) return outages;
  std::exponential_distribution<double> pause(2 * workload.failures);
  for (double at = pause(random); at < workload.seconds; at += pause(random)) {
    const int server = any(random);
    const int role = server < workload.targets ? 0 : 1;
    outages.push_back({.at = at,
                       .announced = outages.size() % 2 == 1,
                       .role = role,
                       .server = role == 0 ? server : server - workload.targets});
  }
  return outages;
}

}  // namespace outrider
