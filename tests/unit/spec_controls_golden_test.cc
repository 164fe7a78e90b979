// The sampling controls against the logits processors of the same name in `transformers`, on the goldens of
// scripts/goldens/controls.py.

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "common/spec/controls.h"

namespace outrider {
namespace {

struct Golden {
  std::string name;
  SamplingParams params;
  size_t prompt_length = 0;
  std::vector<TokenId> context;
  std::vector<float> logits;
  std::vector<double> probabilities;
};

template <class T>
std::vector<T> Rest(std::istringstream& line) {
  std::vector<T> values;
  for (T value; line >> value;) values.push_back(value);
  return values;
}

// Sets one field from its line; false if there is no such field.
bool SetField(const std::string& field, std::istringstream& line, Golden& golden) {
  SamplingParams& params = golden.params;
  if (field == "temperature")
    line >> params.temperature;
  else if (field == "top_k")
    line >> params.top_k;
  else if (field == "top_p")
    line >> params.top_p;
  else if (field == "min_p")
    line >> params.min_p;
  else if (field == "repetition_penalty")
    line >> params.repetition_penalty;
  else if (field == "min_tokens")
    line >> params.min_tokens;
  else if (field == "eos_ids")
    params.eos_ids = Rest<TokenId>(line);
  else if (field == "allowed_ids")
    params.allowed_ids = Rest<TokenId>(line);
  else if (field == "bad_ids")
    params.bad_ids = Rest<TokenId>(line);
  else if (field == "prompt_length")
    line >> golden.prompt_length;
  else if (field == "context")
    golden.context = Rest<TokenId>(line);
  else if (field == "logits")
    golden.logits = Rest<float>(line);
  else if (field == "probabilities")
    golden.probabilities = Rest<double>(line);
  else if (field == "logit_bias") {
    TokenId id;
    for (float bias; line >> id >> bias;) params.logit_bias.emplace_back(id, bias);
  } else
    return false;
  return true;
}

std::vector<Golden> ReadGoldens(const std::string& path) {
  std::ifstream file(path);
  std::vector<Golden> goldens;
  for (std::string text; std::getline(file, text);) {
    std::istringstream line(text);
    std::string field;
    if (!(line >> field)) continue;
    if (field == "case") {
      goldens.emplace_back().name = text.substr(5);
    } else {
      EXPECT_TRUE(!goldens.empty() && SetField(field, line, goldens.back())) << "unknown field " << field;
    }
  }
  return goldens;
}

TEST(ControlsGolden, AgreeWithTransformers) {
  const std::vector<Golden> goldens = ReadGoldens("tests/data/spec/controls.golden.txt");
  ASSERT_GT(goldens.size(), 70u);
  for (const Golden& golden : goldens) {
    absl::StatusOr<Controls> controls =
        Controls::Create(golden.params, golden.prompt_length, static_cast<int>(golden.logits.size()));
    ASSERT_TRUE(controls.ok()) << golden.name << ": " << controls.status();
    std::vector<float> logits = golden.logits;
    const absl::StatusOr<WeightRow> row = controls->Apply(golden.context, logits);
    ASSERT_TRUE(row.ok()) << golden.name << ": " << row.status();
    ASSERT_EQ(golden.probabilities.size(), golden.logits.size());
    for (size_t x = 0; x < logits.size(); ++x) {
      const double p = (*row)(static_cast<TokenId>(x)), expected = golden.probabilities[x];
      EXPECT_NEAR(p, expected, 1e-5) << golden.name << ", token " << x;
      // The same tokens remain, except that weights below the smallest normal float are 0 here.
      EXPECT_TRUE(expected > 1e-37 ? p > 0 : expected > 0 || p == 0) << golden.name << ", token " << x;
    }
  }
}

}  // namespace
}  // namespace outrider
