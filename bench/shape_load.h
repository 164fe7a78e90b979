// Many concurrent streams of a controlled pair: tokens per second of plain and of speculative decoding.
#pragma once

#include <atomic>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "bench/load.h"

namespace outrider {

struct ShapeLoad {
  int streams = 1;
  double seconds = 2;        // per mode
  std::vector<int> ks = {};  // besides 0 and the policy's choice
  // The request with this index. nullopt: the coordinator chooses K.
  std::function<v1::GenerateRequest(std::optional<int> k, int index)> request = {};
};

// Tokens per second of all streams together, after a ramp-up.
inline absl::StatusOr<double> MeasureRate(const Client& client, const ShapeLoad& load, std::optional<int> k) {
  constexpr double kRampShare = 0.25;
  const absl::Duration duration = absl::Seconds(load.seconds);
  const absl::Time begin = absl::Now() + kRampShare * duration, end = absl::Now() + duration;
  std::atomic<int> tokens = 0;
  const absl::Status status = RunClosedLoop(
      client, {.streams = load.streams,
               .duration = duration,
               .request =
                   [&](int stream, int index) {
                     v1::GenerateRequest request = load.request(k, index * load.streams + stream);
                     if (index > 0) return request;
                     // The first requests have different lengths, so that streams do not finish in step.
                     const uint32_t all = request.stop().max_tokens();
                     request.mutable_stop()->set_max_tokens(std::max(
                         2U, all * static_cast<uint32_t>(stream + 1) / static_cast<uint32_t>(load.streams)));
                     return request;
                   },
               .on_chunk =
                   [&](int, absl::Time, const v1::GenerateResponse& chunk) {
                     const absl::Time now = absl::Now();
                     if (now >= begin && now < end) tokens += chunk.tokens_size();
                   }});
  if (!status.ok()) return status;
  return tokens / absl::ToDoubleSeconds(end - begin);
}

inline absl::StatusOr<nlohmann::ordered_json> MeasureLoad(const Client& client, const ShapeLoad& load) {
  std::vector<std::optional<int>> modes = {0};
  modes.insert(modes.end(), load.ks.begin(), load.ks.end());
  modes.push_back(std::nullopt);
  nlohmann::ordered_json rows;
  double plain = 0;
  for (const std::optional<int>& k : modes) {
    const auto rate = MeasureRate(client, load, k);
    if (!rate.ok()) return rate.status();
    if (k == 0) plain = *rate;
    const std::string name = !k ? "policy" : *k == 0 ? "plain" : absl::StrCat("K = ", *k);
    absl::PrintF("%3d streams, %-8s %9.0f tokens/s, %.2f of plain\n", load.streams, name, *rate,
                 *rate / plain);
    rows.push_back({{"mode", name}, {"tokens_per_second", *rate}, {"ratio_to_plain", *rate / plain}});
  }
  return nlohmann::ordered_json{{"streams", load.streams}, {"rows", std::move(rows)}};
}

}  // namespace outrider
