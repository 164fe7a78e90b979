// Summaries of several turns of one measurement.
#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"

namespace outrider {

// For an even number of values, the mean of the middle two. `values` must not be empty.
inline double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t above = values.size() / 2;
  return (values[(values.size() - 1) / 2] + values[above]) / 2;
}

// The median over turns, with the least and the largest: smaller differences are not significant.
struct Spread {
  double median = 0, least = 0, most = 0;

  static Spread Of(const std::vector<double>& values) {
    const auto [least, most] = std::minmax_element(values.begin(), values.end());
    return {Median(values), *least, *most};
  }
  std::string Text() const { return absl::StrFormat("%.2f (%.2f-%.2f)", median, least, most); }
  nlohmann::ordered_json Json() const { return {{"median", median}, {"least", least}, {"most", most}}; }
};

}  // namespace outrider
