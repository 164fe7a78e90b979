// A time that grows with a size, learnt from what was seen.
#pragma once

namespace outrider {

// The time of something as a linear function of its size, learnt by least squares; what was seen last counts
// most. Sizes are > 0.
class LinearTime {
 public:
  // An observation counts half after about 140 more.
  static constexpr double kDecay = 0.995;

  // While all sizes are alike, one unit more is taken to cost so much of what one costs in the mean.
  explicit LinearTime(double assumed_slope) : assumed_slope_(assumed_slope) {}

  void Observe(double size, double seconds);
  // As if that many observations had been missed.
  void Age(double observations);
  // Seconds that do not depend on the size, and those of each unit; both >= 0.
  double fixed() const;
  double per_unit() const;

 private:
  double assumed_slope_;
  double weight_ = 0, size_ = 0, seconds_ = 0, size_size_ = 0, size_seconds_ = 0;  // decayed sums
};

}  // namespace outrider
