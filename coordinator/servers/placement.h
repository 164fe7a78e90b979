// Chooses the server of a pool for a sequence. Pure functions.
#pragma once

#include <cstdint>
#include <span>

#include "common/spec/types.h"

namespace outrider {

// ServerView::others of a server that has not reported it, such as a new one.
inline constexpr double kUnknownLoad = -1;

// What a coordinator knows of one server of a pool.
struct ServerView {
  uint64_t id = 0;          // the same in every coordinator, as a hash of its address
  bool usable = true;       // it is connected, and was not refused
  bool going_away = false;  // it said that it is about to end
  int sequences = 0;        // of this coordinator, there now
  double others = 0;        // items of other coordinators, waiting or in progress there
};

struct PlacementRequest {
  uint64_t affinity = 0;  // PromptAffinity; 0: the sequence is as well off anywhere
  int avoid = -1;         // index of a server that failed it, to be taken only if it is the last; -1: none
  uint64_t tie = 0;       // a random number
};

// Returns the index of the server to take, or -1 if none can be.
//
// Takes the least loaded, where load is sequences plus others' items. Where the latter are unknown, they are
// assumed to be the mean of the others: a new server would be flooded if all coordinators held it for idle
// until it answers. Loads less than one apart are equal: between such servers affinity decides, or else
// chance. A server that affinity prefers may also have one sequence more than the least loaded, as long as it
// has fewer than kCheapSequences: so few share a step at little cost, and a prompt that need not be computed
// again saves more.
//
// Affinity is rendezvous hashing (Thaler and Ravishankar, "Using name-based mappings to increase hit rates",
// 1998): of the servers that may be taken, the one with the largest hash of (affinity, id). If a server comes
// or goes, only the prompts that it gets or had move.
int Place(std::span<const ServerView> servers, const PlacementRequest& request);

// Sequences up to which affinity may outweigh load.
inline constexpr int kCheapSequences = 4;

// The hash of a prompt's first two blocks, below which a prefix cache helps little; 0 if it has fewer.
// `block_size` is that of the server's cache, in tokens.
uint64_t PromptAffinity(std::span<const TokenId> prompt, int block_size);

}  // namespace outrider
