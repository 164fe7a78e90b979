// Averages of what keeps changing.
#pragma once

#include <cmath>

namespace outrider {

// A mean in which an observation counts `decay` times as much after each that follows.
class RunningMean {
 public:
  explicit RunningMean(double decay) : decay_(decay) {}

  void Observe(double value, double weight = 1) {
    Age(1);
    weight_ += weight;
    sum_ += weight * value;
  }
  // As if that many observations had been missed.
  void Age(double observations) {
    const double factor = std::pow(decay_, observations);
    weight_ *= factor;
    sum_ *= factor;
  }

  double weight() const { return weight_; }
  double sum() const { return sum_; }
  double mean(double unknown) const { return weight_ > 0 ? sum_ / weight_ : unknown; }

 private:
  double decay_;
  double weight_ = 0, sum_ = 0;
};

}  // namespace outrider
