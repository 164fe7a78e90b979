// The goldens of tests/data/beams: models that are tables, and the results of transformers' beam search.
#pragma once

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "common/rpc/drafters.h"
#include "coordinator/decode/beam_search.h"

namespace outrider {

// Log-probabilities that depend on the last two tokens.
class BeamTable {
 public:
  explicit BeamTable(const nlohmann::json& golden)
      : rows_(golden["rows"]), stride_(golden["stride"]), step_(golden["step"]) {}

  int vocab() const { return static_cast<int>(rows_[0].size()); }

  // The `size` most probable tokens after `tokens`.
  CandidateRow Top(std::span<const TokenId> tokens, int size) const {
    const TokenId before = tokens.size() > 1 ? tokens[tokens.size() - 2] : 0;
    const auto row = static_cast<size_t>(stride_ * before + tokens.back()) % rows_.size();
    CandidateRow top;
    for (TokenId token = 0; token < vocab(); ++token) {
      top.push_back({token, step_ * rows_[row][static_cast<size_t>(token)]});
    }
    std::stable_sort(top.begin(), top.end(),
                     [](const auto& a, const auto& b) { return a.log_probability > b.log_probability; });
    top.resize(std::min(top.size(), static_cast<size_t>(size)));
    return top;
  }

 private:
  const std::vector<std::vector<int>> rows_;
  const int stride_;
  const double step_;
};

// One search.
struct BeamGolden {
  BeamTable table;
  std::vector<TokenId> prompt;
  BeamSearchOptions options;
  size_t n = 1;  // texts in the answer
  std::vector<BeamSearch::Finished> answers;

  // The prompt and what follows it.
  std::vector<TokenId> Text(const std::vector<TokenId>& tokens) const {
    std::vector<TokenId> text = prompt;
    text.insert(text.end(), tokens.begin(), tokens.end());
    return text;
  }
  CandidateRow RowAfter(const std::vector<TokenId>& tokens) const {
    return table.Top(Text(tokens), BeamSearch::RowSize(options));
  }
};

inline std::vector<BeamGolden> ReadBeamGoldens() {
  std::vector<BeamGolden> goldens;
  for (const auto& table : nlohmann::json::parse(std::ifstream("tests/data/beams/tables.json"))) {
    for (const auto& one : table["cases"]) {
      BeamGolden& golden = goldens.emplace_back(
          BeamGolden{.table = BeamTable(table),
                     .prompt = one["prompt"],
                     .options = {.width = one["width"],
                                 .length_penalty = one["penalty"],
                                 .stop = FromName<v1::BeamStop>(one["stop"].get<std::string>()),
                                 .end_ids = one["eos"],
                                 .max_tokens = one["max_tokens"]},
                     .n = one["n"],
                     .answers = {}});
      for (const auto& answer : one["answers"]) golden.answers.push_back({answer["tokens"], answer["score"]});
    }
  }
  return goldens;
}

}  // namespace outrider
