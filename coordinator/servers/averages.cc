#include "coordinator/servers/averages.h"

#include <algorithm>
#include <cmath>

namespace outrider {
namespace {

// The spread of sizes assumed along with the assumed slope.
constexpr double kAssumedSpread = 0.001;

}  // namespace

void LinearTime::Observe(double size, double seconds) {
  Age(1);
  weight_ += 1;
  size_ += size;
  seconds_ += seconds;
  size_size_ += size * size;
  size_seconds_ += size * seconds;
}

void LinearTime::Age(double observations) {
  const double factor = std::pow(kDecay, observations);
  for (double* sum : {&weight_, &size_, &seconds_, &size_size_, &size_seconds_}) *sum *= factor;
}

double LinearTime::per_unit() const {
  if (weight_ == 0) return 0;
  const double size = size_ / weight_, seconds = seconds_ / weight_;
  const double spread = size_size_ / weight_ - size * size;
  const double together = size_seconds_ / weight_ - size * seconds;
  const double assumed = kAssumedSpread * size * size;
  const double slope = (together + assumed * assumed_slope_ * seconds / size) / (spread + assumed);
  return std::clamp(slope, 0.0, seconds / size);
}

double LinearTime::fixed() const {
  return weight_ == 0 ? 0 : std::max(seconds_ / weight_ - per_unit() * size_ / weight_, 0.0);
}

}  // namespace outrider
