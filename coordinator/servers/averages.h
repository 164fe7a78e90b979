// Averages of changing quantities: recent observations count most. One thread each.
#pragma once

#include <cmath>

namespace outrider {

// A mean in which each observation multiplies the weight of the earlier ones by `decay`.
class RunningMean {
 public:
  explicit RunningMean(double decay) : decay_(decay) {}

  void Observe(double value, double weight = 1) {
    Age(1);
    weight_ += weight;
    sum_ += weight * value;
  }
  // Ages as if that many observations had been missed.
  void Age(double observations) {
    const double factor = std::pow(decay_, observations);
    weight_ *= factor;
    sum_ *= factor;
  }

  double weight() const { return weight_; }
  double mean(double unknown) const { return weight_ > 0 ? sum_ / weight_ : unknown; }
  // The mean, combined with a guess that counts as `prior` observations.
  double Learnt(double guess, double prior) const { return (sum_ + prior * guess) / (weight_ + prior); }

 private:
  double decay_;
  double weight_ = 0, sum_ = 0;
};

// Fits a time as a linear function of a size > 0, by least squares.
class LinearTime {
 public:
  // An observation's weight halves after about 140 more.
  static constexpr double kDecay = 0.995;

  // While all sizes are alike, a unit is assumed to cost `assumed_slope` times the mean cost of one.
  explicit LinearTime(double assumed_slope) : assumed_slope_(assumed_slope) {}

  void Observe(double size, double seconds);
  // Ages as if that many observations had been missed.
  void Age(double observations);
  // Seconds independent of the size, and seconds per unit; both >= 0.
  double fixed() const;
  double per_unit() const;

 private:
  double assumed_slope_;
  double weight_ = 0, size_ = 0, seconds_ = 0, size_size_ = 0, size_seconds_ = 0;  // decayed sums
};

}  // namespace outrider
