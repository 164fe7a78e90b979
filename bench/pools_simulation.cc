#include "bench/pools_simulation.h"

#include <algorithm>
#include <utility>

#include "common/kv/prefix_hash.h"

namespace outrider {
namespace {

constexpr double kRetrySeconds = 0.1;  // where no server can be used
constexpr double kReportWeight = 0.2;  // of what a server reports last

// The first that can be used, from `start` on, -1 if there is none.
int UsableFrom(const std::vector<ServerView>& views, size_t start) {
  for (size_t i = 0; i < views.size(); ++i) {
    const size_t at = (start + i) % views.size();
    if (views[at].usable && !views[at].going_away) return static_cast<int>(at);
  }
  return -1;
}

}  // namespace

PoolsSimulation::PoolsSimulation(const PoolsWorkload& workload, const std::vector<SimulatedRequest>& requests,
                                 const std::vector<Outage>& outages, Choice choice)
    : workload_(workload),
      requests_(requests),
      outages_(outages),
      choice_(choice),
      random_(workload.seed + 2),
      sequences_(requests.size()),
      coordinators_(static_cast<size_t>(workload.coordinators)) {
  for (int role : {kTarget, kDraft}) {
    const auto count = static_cast<size_t>(role == kTarget ? workload.targets : workload.drafts);
    servers_[role].resize(count);
    for (Coordinator& coordinator : coordinators_) {
      coordinator.items[role].resize(count);
      coordinator.next[role] = random_() % count;
      for (size_t i = 0; i < count; ++i) {
        coordinator.views[role].push_back(
            {.id = ExtendPrefixHash(kEmptyPrefixHash, static_cast<TokenId>(i)), .others = kUnknownLoad});
      }
    }
  }
}

PoolsResult PoolsSimulation::Run() {
  for (size_t i = 0; i < requests_.size(); ++i) {
    events_.push({requests_[i].at, order_++, Kind::kArrival, -1, static_cast<int>(i), 0});
  }
  for (size_t i = 0; i < outages_.size(); ++i) {
    events_.push({outages_[i].at, order_++, Kind::kOutage, -1, static_cast<int>(i), 0});
  }
  Push(0, Kind::kSample, -1, -1);
  while (!events_.empty() && events_.top().at < workload_.seconds) {
    const Event event = events_.top();
    events_.pop();
    now_ = event.at;
    Handle(event);
  }
  result_.stream_rate /= std::max<double>(1, static_cast<double>(result_.requests));
  return std::move(result_);
}

void PoolsSimulation::Handle(const Event& event) {
  const auto is_same_life = [&] {
    return servers_[event.role][static_cast<size_t>(event.index)].life == event.detail;
  };
  switch (event.kind) {
    case Kind::kArrival:
      return Send(event.index);
    case Kind::kNext:
      return event.role >= 0 ? OnAnswer(event.index, event.role, event.detail) : Send(event.index);
    case Kind::kStepEnd:
      if (is_same_life()) EndStep(event.role, event.index);
      return;
    case Kind::kOutage:
      return OnOutage(outages_[static_cast<size_t>(event.index)]);
    case Kind::kEnd:
      if (is_same_life()) End(event.role, event.index);
      return;
    case Kind::kBack:
      return ComeBack(event.role, event.index);
    case Kind::kSample:
      Sample();
      Push(kSampleSeconds, Kind::kSample, -1, -1);
  }
}

void PoolsSimulation::OnAnswer(int index, int role, int64_t load) {
  Sequence& sequence = sequences_[static_cast<size_t>(index)];
  const SimulatedRequest& request = requests_[static_cast<size_t>(index)];
  Coordinator& coordinator = coordinators_[static_cast<size_t>(request.coordinator)];
  const auto server = static_cast<size_t>(sequence.home[role]);
  const int ours = --coordinator.items[role][server];
  const double reported = std::max<double>(0, static_cast<double>(load - ours));
  double& others = coordinator.views[role][server].others;
  others = others < 0 ? reported : others + kReportWeight * (reported - others);
  if (role == kDraft) {
    sequence.turn = kTarget;
  } else {
    sequence.turn = kDraft;
    if (++sequence.rounds > 0 && warm()) result_.tokens += kTokensPerRound;
    if (sequence.rounds == request.rounds) return Finish(index);
  }
  Send(index);
}

void PoolsSimulation::Finish(int index) {
  for (int role : {kTarget, kDraft}) Leave(index, role);
  if (!warm()) return;
  const SimulatedRequest& request = requests_[static_cast<size_t>(index)];
  ++result_.requests;
  if (sequences_[static_cast<size_t>(index)].waited) ++result_.waited;
  result_.stream_rate += kTokensPerRound * request.rounds / (now_ - request.at);
}

void PoolsSimulation::Send(int index) {
  Sequence& sequence = sequences_[static_cast<size_t>(index)];
  int rows = kCosts[sequence.turn].rows;
  int home = Settle(index, sequence.turn, &rows);
  if (home < 0 && sequence.turn == kDraft) {  // a round without a proposal
    sequence.turn = kTarget;
    rows = 1;
    home = Settle(index, kTarget, &rows);
  }
  if (home < 0) {
    sequence.waited = true;
    return Push(kRetrySeconds, Kind::kNext, -1, index);
  }
  const int role = sequence.turn;
  const SimulatedRequest& request = requests_[static_cast<size_t>(index)];
  ++coordinators_[static_cast<size_t>(request.coordinator)].items[role][static_cast<size_t>(home)];
  Server& server = servers_[role][static_cast<size_t>(home)];
  server.waiting.push_back({index, rows});
  if (!server.in_step) StartStep(role, home);
}

int PoolsSimulation::Settle(int index, int role, int* rows) {
  Sequence& sequence = sequences_[static_cast<size_t>(index)];
  const SimulatedRequest& request = requests_[static_cast<size_t>(index)];
  Coordinator& coordinator = coordinators_[static_cast<size_t>(request.coordinator)];
  const int before = sequence.home[role];
  if (before >= 0) {
    const ServerView& view = coordinator.views[role][static_cast<size_t>(before)];
    if (view.usable && !view.going_away) return before;
    if (warm()) ++(view.usable ? result_.drained : result_.lost);
    Leave(index, role);
  }
  const int home = Choose(request, role);
  if (home < 0) return -1;
  sequence.home[role] = home;
  ++servers_[role][static_cast<size_t>(home)].sequences;
  ++coordinator.views[role][static_cast<size_t>(home)].sequences;
  const bool hit = request.prefix >= 0 && TouchPrefix(role, home, request.prefix);
  if (request.prefix >= 0 && before < 0 && warm()) {
    ++result_.placed[role];
    result_.hits[role] += hit ? 1 : 0;
  }
  *rows += request.own_tokens + (request.prefix < 0 || !hit ? kSharedTokens : 0) +
           kTokensPerRound * std::max(0, sequence.rounds);
  return home;
}

int PoolsSimulation::Choose(const SimulatedRequest& request, int role) {
  Coordinator& coordinator = coordinators_[static_cast<size_t>(request.coordinator)];
  const std::vector<ServerView>& views = coordinator.views[role];
  switch (choice_) {
    case Choice::kPlacement:
      return Place(views, {.affinity = request.affinity, .tie = random_()});
    case Choice::kRandom:
      return AnyUsable(views);
    case Choice::kRoundRobin: {
      const int chosen = UsableFrom(views, coordinator.next[role]);
      coordinator.next[role] = static_cast<size_t>(chosen + 1) % views.size();
      return chosen;
    }
    case Choice::kAllKnowing:
      return LeastLoaded(role);
  }
  return -1;
}

int PoolsSimulation::AnyUsable(const std::vector<ServerView>& views) {
  if (UsableFrom(views, 0) < 0) return -1;
  while (true) {
    const size_t any = random_() % views.size();
    if (views[any].usable && !views[any].going_away) return static_cast<int>(any);
  }
}

int PoolsSimulation::LeastLoaded(int role) {
  const std::vector<Server>& servers = servers_[role];
  const size_t start = random_() % servers.size();
  int best = -1;
  for (size_t i = 0; i < servers.size(); ++i) {
    const size_t at = (start + i) % servers.size();
    if (!servers[at].up || servers[at].going_away) continue;
    if (best < 0 || servers[at].sequences < servers[static_cast<size_t>(best)].sequences) {
      best = static_cast<int>(at);
    }
  }
  return best;
}

void PoolsSimulation::Leave(int index, int role) {
  const int home = std::exchange(sequences_[static_cast<size_t>(index)].home[role], -1);
  if (home < 0) return;
  --servers_[role][static_cast<size_t>(home)].sequences;
  const int coordinator = requests_[static_cast<size_t>(index)].coordinator;
  --coordinators_[static_cast<size_t>(coordinator)].views[role][static_cast<size_t>(home)].sequences;
}

bool PoolsSimulation::TouchPrefix(int role, int server, int prefix) {
  std::list<int>& prefixes = servers_[role][static_cast<size_t>(server)].prefixes;
  const auto found = std::find(prefixes.begin(), prefixes.end(), prefix);
  const bool hit = found != prefixes.end();
  if (hit) prefixes.erase(found);
  prefixes.push_front(prefix);
  if (prefixes.size() > kCosts[role].prefixes) prefixes.pop_back();
  return hit;
}

void PoolsSimulation::StartStep(int role, int index) {
  Server& server = servers_[role][static_cast<size_t>(index)];
  const EngineCost& cost = kCosts[role];
  int room = cost.max_rows;
  while (!server.waiting.empty()) {
    Item& first = server.waiting.front();
    const int rows = std::min(room, first.rows);
    room -= rows;
    first.rows -= rows;
    if (first.rows > 0) break;
    server.step.push_back(first);
    server.waiting.pop_front();
  }
  for (const Item& item : server.waiting) sequences_[static_cast<size_t>(item.request)].waited = true;
  server.in_step = true;
  Push(cost.step_seconds + cost.row_seconds * (cost.max_rows - room), Kind::kStepEnd, role, index,
       server.life);
}

void PoolsSimulation::EndStep(int role, int index) {
  Server& server = servers_[role][static_cast<size_t>(index)];
  server.in_step = false;
  // The items of the step count until their answers are written.
  const auto load = static_cast<int64_t>(server.waiting.size() + server.step.size());
  for (const Item& item : std::exchange(server.step, {})) {
    Push(workload_.delay, Kind::kNext, role, item.request, load);
  }
  if (!server.waiting.empty()) StartStep(role, index);
}

void PoolsSimulation::OnOutage(const Outage& outage) {
  Server& server = servers_[outage.role][static_cast<size_t>(outage.server)];
  if (!server.up || server.going_away) return;
  if (!outage.announced) return End(outage.role, outage.server);
  server.going_away = true;
  Announce(outage.role, outage.server);
  Push(kDrainSeconds, Kind::kEnd, outage.role, outage.server, server.life);
}

void PoolsSimulation::Announce(int role, int index) {
  const Server& server = servers_[role][static_cast<size_t>(index)];
  for (Coordinator& coordinator : coordinators_) {
    ServerView& view = coordinator.views[role][static_cast<size_t>(index)];
    view.usable = server.up;
    view.going_away = server.going_away;
    view.others = kUnknownLoad;
  }
}

void PoolsSimulation::End(int role, int index) {
  Server& server = servers_[role][static_cast<size_t>(index)];
  ++server.life;
  server.up = server.going_away = false;
  server.in_step = false;
  server.prefixes.clear();
  Announce(role, index);
  for (const Item& item : server.waiting) server.step.push_back(item);
  server.waiting.clear();
  for (const Item& item : std::exchange(server.step, {})) {
    const int coordinator = requests_[static_cast<size_t>(item.request)].coordinator;
    --coordinators_[static_cast<size_t>(coordinator)].items[role][static_cast<size_t>(index)];
    Push(workload_.delay, Kind::kNext, -1, item.request);
  }
  Push(kAwaySeconds, Kind::kBack, role, index);
}

void PoolsSimulation::ComeBack(int role, int index) {
  servers_[role][static_cast<size_t>(index)].up = true;
  Announce(role, index);
}

void PoolsSimulation::Sample() {
  for (int role : {kTarget, kDraft}) {
    std::vector<double> counts;
    double sum = 0;
    for (const Server& server : servers_[role]) {
      if (!server.up || server.going_away) continue;
      counts.push_back(server.sequences);
      sum += server.sequences;
    }
    if (sum == 0) continue;
    std::sort(counts.begin(), counts.end());
    const double mean = sum / static_cast<double>(counts.size());
    const size_t p99 = (counts.size() * 99 + 99) / 100 - 1;
    result_.balance[role].push_back({now_, counts.back() / mean, counts[p99] / mean, mean});
  }
}

}  // namespace outrider
