// Coordinators, targets and drafts as queues, for bench_pools. The choice of a server is that of production;
// engines are imitated: a step takes all items that wait, up to a number of rows, and its time grows with
// them.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <queue>
#include <random>
#include <vector>

#include "bench/pools_workload.h"

namespace outrider {

// How a server is chosen.
enum class Choice {
  kPlacement,   // Place
  kRandom,      // any that is up
  kRoundRobin,  // the next one that is up, by a count of each coordinator's
  kAllKnowing,  // the one with the fewest sequences of all coordinators at this moment, which nobody can know
};

enum Role { kTarget, kDraft };

// An engine. The times are assumptions: a model of some billion parameters on a GPU, and one of a tenth.
struct EngineCost {
  double step_seconds;  // of a step without rows, for a draft of the steps of a proposal together
  double row_seconds;
  int rows;         // of an item of a round: K and one more, or K
  int max_rows;     // in a step
  size_t prefixes;  // that its cache holds
};
inline constexpr EngineCost kCosts[2] = {{0.020, 3e-5, 5, 2048, 200}, {0.006, 5e-6, 4, 2048, 50}};
inline constexpr double kWarmUp = 0.25;  // share of the time that results leave out
inline constexpr double kSampleSeconds = 0.25;
inline constexpr double kDrainSeconds = 5;  // from being told to end to the end
inline constexpr double kAwaySeconds = 10;  // from the end to being back

// Sequences on a server of a pool, at one time.
struct Balance {
  double at = 0;  // seconds
  double max_to_mean = 0, p99_to_mean = 0;
  double mean = 0;
};

struct PoolsResult {
  std::vector<Balance> balance[2];
  int64_t placed[2] = {};         // requests that share a prefix, when they first come to a server
  int64_t hits[2] = {};           // of those, requests that found it there
  int64_t lost = 0, drained = 0;  // moves of sequences off a server that died, and off one about to end
  int64_t requests = 0;           // that ended
  int64_t waited = 0;             // of those, requests with an item that waited for more than the next step
  double tokens = 0;              // emitted
  double stream_rate = 0;         // mean over requests of tokens a second, from arrival to end
};

class PoolsSimulation {
 public:
  PoolsSimulation(const PoolsWorkload& workload, const std::vector<SimulatedRequest>& requests,
                  const std::vector<Outage>& outages, Choice choice);

  PoolsResult Run();

 private:
  enum class Kind {
    kArrival,
    kNext,  // a coordinator has an answer, or none, and sends the sequence's next item
    kStepEnd,
    kOutage,
    kEnd,
    kBack,
    kSample,
  };

  struct Event {
    double at;
    uint64_t order;  // of events at the same time
    Kind kind;
    int role;        // of a server; -1: kNext without an answer
    int index;       // of a request, a server or an outage
    int64_t detail;  // of kNext: the load that the server reported; of kStepEnd and kEnd: its life
    bool operator>(const Event& other) const { return at != other.at ? at > other.at : order > other.order; }
  };

  struct Item {
    int request;
    int rows;  // that are to be computed
  };

  struct Server {
    int64_t life = 0;
    bool up = true, going_away = false;
    int sequences = 0;
    std::deque<Item> waiting;
    std::vector<Item> step;  // items that end with the step in progress
    bool in_step = false;
    std::list<int> prefixes;  // the latest first
  };

  struct Sequence {
    int rounds = -1;     // that it has had; -1: its prompt is not computed
    int turn = kTarget;  // who gets its next item
    int home[2] = {-1, -1};
    bool waited = false;
  };

  // What a coordinator knows.
  struct Coordinator {
    std::vector<ServerView> views[2];
    std::vector<int> items[2];  // its own that are not answered, by server
    size_t next[2] = {};        // kRoundRobin
  };

  void Push(double delay, Kind kind, int role, int index, int64_t detail = 0) {
    events_.push({now_ + delay, order_++, kind, role, index, detail});
  }
  void Handle(const Event& event);
  void OnOutage(const Outage& outage);
  void OnAnswer(int index, int role, int64_t load);
  void Finish(int index);
  void Send(int index);
  // Where the sequence is, or goes to. Adds the rows that are to be computed there once more. -1: nowhere.
  int Settle(int index, int role, int* rows);
  int Choose(const SimulatedRequest& request, int role);
  int AnyUsable(const std::vector<ServerView>& views);
  int LeastLoaded(int role);
  void Leave(int index, int role);
  // Whether the server's cache has the prefix. It has it afterwards.
  bool TouchPrefix(int role, int server, int prefix);
  void StartStep(int role, int server);
  void EndStep(int role, int server);
  // Tells the coordinators.
  void Announce(int role, int server);
  void End(int role, int server);
  void ComeBack(int role, int server);
  void Sample();
  bool warm() const { return now_ >= kWarmUp * workload_.seconds; }

  const PoolsWorkload& workload_;
  const std::vector<SimulatedRequest>& requests_;
  const std::vector<Outage>& outages_;
  const Choice choice_;
  std::mt19937_64 random_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  uint64_t order_ = 0;
  double now_ = 0;
  std::vector<Server> servers_[2];
  std::vector<Sequence> sequences_;
  std::vector<Coordinator> coordinators_;
  PoolsResult result_;
};

}  // namespace outrider
