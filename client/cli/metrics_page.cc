#include "client/cli/metrics_page.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace outrider {
namespace {

// Takes `a="b",c="d"}` off the front of a line; false if that is not what it begins with.
bool ParseLabels(std::string_view* line, MetricLabels* labels) {
  while (!line->empty()) {
    if (line->front() == '}') {
      line->remove_prefix(1);
      return true;
    }
    if (line->front() == ',') line->remove_prefix(1);
    const size_t equals = line->find("=\"");
    if (equals == std::string_view::npos) return false;
    std::string& value = (*labels)[std::string(line->substr(0, equals))];
    line->remove_prefix(equals + 2);
    while (!line->empty() && line->front() != '"') {
      const bool escaped = line->front() == '\\' && line->size() > 1;
      if (escaped) line->remove_prefix(1);
      value += escaped && line->front() == 'n' ? '\n' : line->front();
      line->remove_prefix(1);
    }
    if (line->empty()) return false;
    line->remove_prefix(1);
  }
  return false;
}

bool Matches(const MetricLabels& labels, const MetricLabels& wanted) {
  return std::all_of(wanted.begin(), wanted.end(), [&](const auto& want) {
    const auto found = labels.find(want.first);
    return found != labels.end() && found->second == want.second;
  });
}

double ParseBound(const std::string& text) {
  double bound = INFINITY;
  return absl::SimpleAtod(text, &bound) ? bound : INFINITY;
}

}  // namespace

MetricsPage MetricsPage::Parse(std::string_view text) {
  MetricsPage page;
  for (const auto part : absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    std::string_view line(part.data(), part.size());
    const size_t end = line.find_first_of("{ ");
    if (line.empty() || line.front() == '#' || end == std::string_view::npos) continue;
    Sample sample{std::string(line.substr(0, end)), {}, 0};
    line.remove_prefix(end);
    if (line.front() == '{') {
      line.remove_prefix(1);
      if (!ParseLabels(&line, &sample.labels)) continue;
    }
    while (!line.empty() && line.front() == ' ') line.remove_prefix(1);
    const std::string_view value = line.substr(0, line.find(' '));
    if (absl::SimpleAtod(absl::string_view(value.data(), value.size()), &sample.value)) {
      page.samples_.push_back(std::move(sample));
    }
  }
  return page;
}

double MetricsPage::Sum(std::string_view name, const MetricLabels& labels) const {
  double sum = 0;
  for (const Sample& sample : samples_) {
    if (sample.name == name && Matches(sample.labels, labels)) sum += sample.value;
  }
  return sum;
}

std::map<std::string, double> MetricsPage::By(std::string_view name, const std::string& label) const {
  std::map<std::string, double> sums;
  for (const Sample& sample : samples_) {
    const auto found = sample.labels.find(label);
    if (sample.name == name && found != sample.labels.end()) sums[found->second] += sample.value;
  }
  return sums;
}

double MetricsChange::Increase(std::string_view name, const MetricLabels& labels) const {
  return after.Sum(name, labels) - before.Sum(name, labels);
}

std::optional<double> MetricsChange::Ratio(std::string_view numerator, std::string_view denominator,
                                           const MetricLabels& labels) const {
  const double below = Increase(denominator, labels);
  if (below <= 0) return std::nullopt;
  return Increase(numerator, labels) / below;
}

std::optional<double> MetricsChange::Mean(const std::string& histogram, const MetricLabels& labels) const {
  return Ratio(histogram + "_sum", histogram + "_count", labels);
}

std::optional<double> MetricsChange::Quantile(const std::string& histogram, double q) const {
  const std::string name = histogram + "_bucket";
  const std::map<std::string, double> old = before.By(name, "le");
  std::map<double, double> cumulative;
  for (const auto& [bound, count] : after.By(name, "le")) {
    const auto found = old.find(bound);
    cumulative[ParseBound(bound)] = count - (found == old.end() ? 0 : found->second);
  }
  if (cumulative.empty() || cumulative.rbegin()->second <= 0) return std::nullopt;
  const double rank = q * cumulative.rbegin()->second;
  double lower_bound = 0, lower_count = 0;
  for (const auto& [bound, count] : cumulative) {
    if (count >= rank) {
      if (std::isinf(bound)) return lower_bound;
      return count > lower_count
                 ? lower_bound + (bound - lower_bound) * (rank - lower_count) / (count - lower_count)
                 : bound;
    }
    lower_bound = bound;
    lower_count = count;
  }
  return lower_bound;
}

}  // namespace outrider
