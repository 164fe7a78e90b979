#include "common/serve/kv_budget.h"

#include <algorithm>
#include <cmath>

namespace outrider {

double KvBudget::PoolBytes(double free_bytes, size_t block_bytes) {
  absl::MutexLock lock(&mutex_);
  ++asked_;
  free_bytes_ = std::min(free_bytes_, free_bytes);
  block_bytes_ += static_cast<double>(block_bytes);
  const auto all_have_asked = [](KvBudget* budget) ABSL_EXCLUSIVE_LOCKS_REQUIRED(budget->mutex_) {
    return budget->asked_ == budget->models_;
  };
  mutex_.Await(absl::Condition(+all_have_asked, this));
  return std::floor(fraction_ * free_bytes_ / block_bytes_) * static_cast<double>(block_bytes);
}

}  // namespace outrider
