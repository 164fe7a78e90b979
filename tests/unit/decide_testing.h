// Helpers for tests of the device's decisions: teams of threads on the host, and rows that are hard to
// decide.
#pragma once

#include <algorithm>
#include <atomic>
#include <barrier>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <limits>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "common/engine/cuda/decide_convert.h"
#include "common/engine/cuda/decide_types.h"
#include "common/spec/controls.h"
#include "common/spec/team/row_shape.h"
#include "common/spec/team/team.h"

namespace outrider::cuda {

using namespace team;  // the namespace under test

// The groups of threads of a team. A number alone is one group.
struct TeamSize {
  TeamSize(int group_threads, int group_count = 1) : threads(group_threads), groups(group_count) {}
  int threads, groups;
};

// One thread of a team on the host.
class HostTeam {
 public:
  // `barriers` holds the team's barrier, and then one for each group.
  HostTeam(int rank, TeamSize size, TeamScratch* scratch, std::deque<std::barrier<>>* barriers,
           size_t barrier = 0)
      : rank_(rank), size_(size), scratch_(scratch), barriers_(barriers), barrier_(barrier) {}

  int rank() const { return rank_; }
  int size() const { return size_.threads * size_.groups; }
  int group() const { return rank_ / size_.threads; }
  int groups() const { return size_.groups; }
  HostTeam local() const {
    if (groups() == 1) return *this;
    return {rank_ % size_.threads, size_.threads, &scratch_[group()], barriers_,
            static_cast<size_t>(1 + group())};
  }
  TeamScratch& scratch(int group = 0) const { return scratch_[group]; }
  void Sync() const {
    if (size() > 1) (*barriers_)[barrier_].arrive_and_wait();
  }
  uint64_t Max(uint64_t value) const {
    scratch_->partial[rank_] = value;
    Sync();
    for (int i = 0; i < size(); ++i) value = std::max(value, scratch_->partial[i]);
    Sync();
    return value;
  }
  uint32_t Add(uint32_t* cell, uint32_t n) const {
    return std::atomic_ref<uint32_t>(*cell).fetch_add(n, std::memory_order_relaxed);
  }
  uint32_t Count(uint32_t* cell) const { return Add(cell, 1); }

 private:
  int rank_;
  TeamSize size_;
  TeamScratch* scratch_;
  std::deque<std::barrier<>>* barriers_;
  size_t barrier_;
};

// Calls work(team) from every thread of a team of 1 to 32. The scratch memory starts with noise.
template <class Work>
void OnTeam(TeamSize size, const Work& work) {
  std::vector<TeamScratch> scratch(static_cast<size_t>(size.groups));
  std::memset(static_cast<void*>(scratch.data()), 0xa5, scratch.size() * sizeof(TeamScratch));
  const int threads = size.threads * size.groups;
  std::deque<std::barrier<>> barriers;
  barriers.emplace_back(threads);
  for (int g = 0; g < size.groups; ++g) barriers.emplace_back(size.threads);
  const auto run = [&](int rank) {
    HostTeam team(rank, size, scratch.data(), &barriers);
    work(team);
  };
  std::vector<std::thread> others;
  for (int rank = 1; rank < threads; ++rank) others.emplace_back(run, rank);
  run(0);
  for (std::thread& thread : others) thread.join();
}

using Generator = std::mt19937_64;

inline int Pick(Generator& random, int end) { return static_cast<int>(random() % end); }

template <class T>
T OneOf(Generator& random, std::initializer_list<T> choices) {
  return choices.begin()[Pick(random, static_cast<int>(choices.size()))];
}

// Finite logits: spread out or close together, with ties, with zeros of both signs, with tokens that are
// practically removed, sorted, or all equal.
inline std::vector<float> RandomLogits(Generator& random, int vocab) {
  std::normal_distribution<float> normal(0, OneOf(random, {0.01f, 1.0f, 4.0f, 30.0f}));
  std::vector<float> logits(vocab);
  for (float& logit : logits) logit = normal(random);
  switch (Pick(random, 8)) {
    case 0:
      for (float& logit : logits) logit = std::round(logit);
      break;
    case 1:
      for (float& logit : logits) logit = Pick(random, 3) == 0 ? logit : OneOf(random, {0.0f, -0.0f});
      break;
    case 2:
      for (float& logit : logits) logit = Pick(random, 2) == 0 ? logit : -3e38f;
      break;
    case 3:
      std::fill(logits.begin(), logits.end(), logits[0]);
      break;
    case 4:
      std::sort(logits.begin(), logits.end());
      break;
    default:
      break;
  }
  return logits;
}

inline SamplingParams Sampling(double temperature, int top_k = 0, double top_p = 1, double min_p = 0) {
  SamplingParams params;
  params.temperature = temperature;
  params.top_k = top_k;
  params.top_p = top_p;
  params.min_p = min_p;
  return params;
}

// A row after the controls, by the device's code on a team of threads.
struct DeviceRow {
  std::vector<float> weights;
  ShapedRow shaped;
};

inline DeviceRow ShapeOnTeam(TeamSize size, std::vector<float> logits, const SamplingParams& params) {
  DeviceRow row{std::move(logits), {}};
  const ShapeParams shape = ToShapeParams(params, /*entropy=*/true);
  OnTeam(size, [&](HostTeam& team) {
    ShapeRow(team, row.weights.data(), static_cast<int>(row.weights.size()), shape.controls,
             shape.entropy != 0, &row.shaped);
  });
  return row;
}

inline bool SameBits(std::span<const float> a, std::span<const float> b) {
  const auto same = [](float x, float y) { return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y); };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same);
}

}  // namespace outrider::cuda
