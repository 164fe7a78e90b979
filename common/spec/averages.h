// Averages of changing quantities: recent observations count most. One thread each.
#pragma once

#include <algorithm>
#include <cmath>

namespace outrider {

// A mean in which each observation multiplies the weight of the earlier ones by `decay`.
class RunningMean {
 public:
  static constexpr double kDecay = 0.995;  // an observation's weight halves after about 140 more

  explicit RunningMean(double decay = kDecay) : decay_(decay) {}

  void Observe(double value, double weight = 1) {
    Age(1);
    Add(value, weight);
  }
  // Observes without ageing what was observed before.
  void Add(double value, double weight = 1) {
    weight_ += weight;
    sum_ += weight * value;
  }
  // Adds what the other observed, with a part of its weight.
  void Add(const RunningMean& other, double part) {
    weight_ += part * other.weight_;
    sum_ += part * other.sum_;
  }
  // Ages as if that many observations had been missed.
  void Age(double observations) { Scale(std::pow(decay_, observations)); }
  // Multiplies the weight of what was observed.
  void Scale(double factor) {
    weight_ *= factor;
    sum_ *= factor;
  }

  double weight() const { return weight_; }
  double sum() const { return sum_; }
  double mean(double unknown) const { return weight_ > 0 ? sum_ / weight_ : unknown; }
  // The mean, combined with a guess that counts as `prior` observations.
  double MeanWithPrior(double guess, double prior) const {
    return (sum_ + prior * guess) / (weight_ + prior);
  }

 private:
  double decay_;
  double weight_ = 0, sum_ = 0;
};

// Fits a time as a linear function of a size > 0, by least squares.
class LinearTime {
 public:
  // While all sizes are alike, a unit is assumed to cost `assumed_slope` times the mean cost of one.
  explicit LinearTime(double assumed_slope) : assumed_slope_(assumed_slope) {}

  void Observe(double size, double seconds) {
    Age(1);
    Add(size, seconds);
  }
  // Observes without ageing what was observed before.
  void Add(double size, double seconds) {
    size_.Add(size);
    seconds_.Add(seconds);
    size_size_.Add(size * size);
    size_seconds_.Add(size * seconds);
  }
  // Adds what the other observed, with a part of its weight.
  void Add(const LinearTime& other, double part) {
    size_.Add(other.size_, part);
    seconds_.Add(other.seconds_, part);
    size_size_.Add(other.size_size_, part);
    size_seconds_.Add(other.size_seconds_, part);
  }
  void Age(double observations) {
    if (weight() == 0) return;
    const double factor = std::pow(RunningMean::kDecay, observations);
    for (RunningMean* mean : {&size_, &seconds_, &size_size_, &size_seconds_}) mean->Scale(factor);
  }
  double weight() const { return size_.weight(); }  // of what was observed; 0 if nothing was
  double size() const { return size_.mean(0); }     // the mean
  double Seconds(double size) const { return fixed() + per_unit() * size; }
  // Seconds independent of the size, and seconds per unit; both >= 0.
  double fixed() const { return std::max(seconds_.mean(0) - per_unit() * size_.mean(0), 0.0); }
  double per_unit() const {
    if (weight() == 0) return 0;
    const double size = size_.mean(0), seconds = seconds_.mean(0);
    const double spread = size_size_.mean(0) - size * size;
    const double together = size_seconds_.mean(0) - size * seconds;
    const double assumed = kAssumedSpread * size * size;
    const double slope = (together + assumed * assumed_slope_ * seconds / size) / (spread + assumed);
    return std::clamp(slope, 0.0, seconds / size);
  }

 private:
  static constexpr double kAssumedSpread = 0.001;  // the spread of sizes assumed along with the assumed slope

  double assumed_slope_;
  RunningMean size_, seconds_, size_size_, size_seconds_;
};

}  // namespace outrider
