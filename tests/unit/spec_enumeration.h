// Integrates exactly over all random numbers, by running the production code.
//
// Every random decision of common/spec is a step function of one uniform number. The Enumerator replaces the
// generator. At a decision it finds the steps of that function by bisection on the grid k / 2^53 of the
// generator's values, follows one of them, and later returns for the others. The probability of a path
// through all decisions is the product of its steps' widths, and the paths sum to 1.
//
// Numbers are remembered by their counter. A counter that is used again yields a number within the step
// already taken, so noise that is used twice is integrated as such and not as if it were fresh.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "common/spec/verify.h"

namespace outrider {

class Enumerator final : public Noise {
 public:
  // How counters are formed. All but the first are mistakes that the tests must notice.
  enum class Keying { kProduction, kPositionOnly, kOneStreamForDraftAndAccept };

  explicit Enumerator(Keying keying = Keying::kProduction) : keying_(keying) {}

  // Runs experiment() once for each path; probability() is then that path's.
  template <class Experiment>
  void ForEachPath(Experiment experiment) {
    path_.clear();
    do {
      cursor_ = 0;
      probability_ = 1;
      known_.clear();
      races_.clear();
      round_start_ = 0;
      experiment();
    } while (NextPath());
  }
  double probability() const { return probability_; }
  // Sets the number of tokens before the round whose noise is used next.
  void StartRound(uint64_t round_start) { round_start_ = round_start; }
  // Whether any counter was used twice on a path.
  bool reused() const { return reused_; }

  int Decide(Purpose purpose, uint64_t position, uint64_t candidate,
             absl::FunctionRef<int(double)> step) override {
    const auto [it, fresh] = known_.try_emplace(CounterOf(purpose, position, candidate), Interval{0, kGrid});
    Interval& known = it->second;
    reused_ |= !fresh;
    if (cursor_ == path_.size()) path_.push_back({StepsOf(step, known), 0});
    const Step& taken = path_[cursor_].steps[path_[cursor_].chosen];
    ++cursor_;
    probability_ *= static_cast<double>(taken.interval.end - taken.interval.begin) /
                    static_cast<double>(known.end - known.begin);
    known = taken.interval;
    return taken.answer;
  }

  // Three exponential variables, scaled to sum 1, are uniform on a triangle. A race cuts the remaining part
  // of it along straight lines, so that areas are probabilities. For a vocabulary of 3.
  TokenId Race(uint64_t position, const WeightRow& row) override {
    if (row.point_mass >= 0) return row.point_mass;
    Polygon& possible = races_.try_emplace(position, Polygon{{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}).first->second;
    if (cursor_ == path_.size()) path_.push_back({WinnersOf(row, possible), 0});
    const Step& taken = path_[cursor_].steps[path_[cursor_].chosen];
    ++cursor_;
    probability_ *= Area(taken.polygon) / Area(possible);
    possible = taken.polygon;
    return taken.answer;
  }

 private:
  static constexpr uint64_t kGrid = uint64_t{1} << 53;
  using Counter = std::tuple<uint64_t, uint64_t, uint64_t, uint64_t>;
  using Polygon = std::vector<std::array<double, 3>>;
  struct Interval {
    uint64_t begin, end;
  };
  struct Step {
    int answer;
    Interval interval;
    Polygon polygon;
  };
  struct Choice {
    std::vector<Step> steps;
    size_t chosen;
  };

  Counter CounterOf(Purpose purpose, uint64_t position, uint64_t candidate) const {
    if (keying_ == Keying::kOneStreamForDraftAndAccept && purpose == Purpose::kAccept)
      purpose = Purpose::kDraft;
    return {static_cast<uint64_t>(purpose), position, candidate,
            keying_ == Keying::kPositionOnly ? 0 : round_start_};
  }

  static double Number(uint64_t k) { return static_cast<double>(k) * 0x1.0p-53; }

  static std::vector<Step> StepsOf(absl::FunctionRef<int(double)> step, Interval within) {
    std::vector<Step> steps;
    const int last = step(Number(within.end - 1));
    for (uint64_t begin = within.begin; begin < within.end;) {
      const int answer = step(Number(begin));
      // The first number with another outcome lies in (same, other].
      uint64_t same = begin, other = within.end;
      if (answer == last) same = other - 1;
      while (other - same > 1) {
        const uint64_t middle = same + (other - same) / 2;
        (step(Number(middle)) == answer ? same : other) = middle;
      }
      EXPECT_TRUE(steps.empty() || answer > steps.back().answer) << "a decision must not decrease";
      steps.push_back({answer, {begin, other}, {}});
      begin = other;
    }
    return steps;
  }

  // The part of a polygon where linear(x) <= 0.
  template <class Linear>
  static Polygon Clip(const Polygon& polygon, Linear linear) {
    Polygon part;
    for (size_t i = 0; i < polygon.size(); ++i) {
      const auto& a = polygon[i];
      const auto& b = polygon[(i + 1) % polygon.size()];
      const double fa = linear(a), fb = linear(b);
      if (fa <= 0) part.push_back(a);
      if ((fa < 0 && fb > 0) || (fa > 0 && fb < 0)) {
        const double t = fa / (fa - fb);
        part.push_back({a[0] + t * (b[0] - a[0]), a[1] + t * (b[1] - a[1]), a[2] + t * (b[2] - a[2])});
      }
    }
    return part;
  }

  static double Area(const Polygon& polygon) {
    double twice = 0;
    for (size_t i = 2; i < polygon.size(); ++i) {
      const auto &o = polygon[0], &a = polygon[i - 1], &b = polygon[i];
      twice += (a[0] - o[0]) * (b[1] - o[1]) - (a[1] - o[1]) * (b[0] - o[0]);
    }
    return std::abs(twice) / 2;
  }

  static std::vector<Step> WinnersOf(const WeightRow& row, const Polygon& possible) {
    std::vector<Step> steps;
    for (int a = 0; a < 3; ++a) {
      if (row.weights[a] == 0) continue;
      Polygon wins = possible;
      for (int b = 0; b < 3; ++b) {
        if (b == a) continue;
        wins = Clip(wins, [&](const std::array<double, 3>& e) {
          return e[a] * row.weights[b] - e[b] * row.weights[a];
        });
      }
      if (Area(wins) > 1e-15 * Area(possible)) steps.push_back({a, {}, wins});
    }
    return steps;
  }

  bool NextPath() {
    while (!path_.empty() && path_.back().chosen + 1 == path_.back().steps.size()) path_.pop_back();
    if (path_.empty()) return false;
    ++path_.back().chosen;
    return true;
  }

  Keying keying_;
  std::vector<Choice> path_;
  size_t cursor_ = 0;
  double probability_ = 1;
  uint64_t round_start_ = 0;
  bool reused_ = false;
  std::map<Counter, Interval> known_;
  std::map<uint64_t, Polygon> races_;
};

}  // namespace outrider
