// The results of transformers: the goldens of scripts/goldens/engine.py in tests/data/engine/.
#pragma once

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/unit/engine_helpers.h"

namespace outrider::testing {

inline nlohmann::json ReadJson(const std::string& path) {
  std::ifstream stream(path);
  return nlohmann::json::parse(stream);
}

struct Golden {
  std::vector<TokenId> tokens;
  Logits logits;
  double spread = 0;  // standard deviation of the logits
};

inline Golden ReadGolden(const std::string& model, int vocab) {
  Golden golden;
  golden.tokens = ReadJson(DataDir(model) + "/golden_tokens.json").get<std::vector<TokenId>>();
  std::ifstream stream(DataDir(model) + "/golden_logits.f32", std::ios::binary);
  double sum = 0, squares = 0;
  for (size_t r = 0; r < golden.tokens.size(); ++r) {
    std::vector<float>& row = golden.logits.emplace_back(static_cast<size_t>(vocab));
    stream.read(reinterpret_cast<char*>(row.data()),
                static_cast<std::streamsize>(row.size() * sizeof(float)));
    for (const float x : row) {
      sum += x;
      squares += static_cast<double>(x) * x;
    }
  }
  EXPECT_TRUE(stream.good());
  const double count = static_cast<double>(golden.tokens.size()) * vocab;
  golden.spread = std::sqrt(squares / count - sum / count * (sum / count));
  return golden;
}

inline double RootMeanSquareDifference(const Logits& a, const Logits& b) {
  double squares = 0, count = 0;
  for (size_t r = 0; r < a.size(); ++r) {
    for (size_t i = 0; i < a[r].size(); ++i) {
      const double difference = static_cast<double>(a[r][i]) - b[r][i];
      squares += difference * difference;
      count += 1;
    }
  }
  return std::sqrt(squares / count);
}

// The larger number, or NaN if either is NaN, so that NaN never counts as close to the expected value.
inline double Larger(double a, double b) { return std::isnan(a) || a > b ? a : b; }

inline double Spread(absl::Span<const float> values) {
  double sum = 0, squares = 0;
  for (const float x : values) {
    sum += x;
    squares += static_cast<double>(x) * x;
  }
  const double count = static_cast<double>(values.size());
  return std::sqrt(std::max(0.0, squares / count - sum / count * (sum / count)));
}

// The largest difference as a share of the spread of `expected`.
inline double Difference(absl::Span<const float> values, absl::Span<const float> expected) {
  EXPECT_EQ(values.size(), expected.size());
  double largest = 0;
  for (size_t i = 0; i < std::min(values.size(), expected.size()); ++i) {
    largest = Larger(largest, std::abs(static_cast<double>(values[i]) - expected[i]));
  }
  return largest / Spread(expected);
}

inline double LargestDifference(const Logits& a, const Logits& b) {
  double largest = 0;
  for (size_t r = 0; r < a.size(); ++r) {
    for (size_t i = 0; i < a[r].size(); ++i) {
      largest = Larger(largest, std::abs(static_cast<double>(a[r][i]) - b[r][i]));
    }
  }
  return largest;
}

}  // namespace outrider::testing
