// Prints the logits of a model on any device, for comparison with other implementations.
//
//   bench_logits MODEL_DIR DEVICE DTYPE < STEPS > LOGITS
//
// STEPS is a JSON list of forward passes, each a list of {"sequence": NUMBER, "tokens": [..], "logit_rows":
// N}. A pass appends the tokens to the sequence and outputs the logits of the last N. LOGITS are float32
// rows, pass after pass, each in the order of its list.
#include <cstdio>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "common/engine/runner.h"

namespace outrider {
namespace {

struct SequenceInput {
  int sequence = 0;
  std::vector<TokenId> tokens;
  int logit_rows = 0;
};

absl::StatusOr<std::vector<std::vector<SequenceInput>>> ReadSteps(std::istream& stream) {
  const auto json = nlohmann::json::parse(stream, nullptr, /*allow_exceptions=*/false);
  if (!json.is_array()) return absl::InvalidArgumentError("the steps are not a JSON list");
  std::vector<std::vector<SequenceInput>> steps;
  for (const auto& pass : json) {
    auto& inputs = steps.emplace_back();
    for (const auto& input : pass) {
      inputs.push_back({input.value("sequence", 0), input.value("tokens", std::vector<TokenId>()),
                        input.value("logit_rows", 0)});
    }
  }
  return steps;
}

// Assigns consecutive blocks to each sequence, enough for all its tokens. `total` is the number of blocks.
std::map<int, std::vector<BlockId>> AssignBlocks(const std::vector<std::vector<SequenceInput>>& steps,
                                                 int block_size, int& total) {
  std::map<int, size_t> lengths;
  for (const auto& pass : steps) {
    for (const SequenceInput& input : pass) lengths[input.sequence] += input.tokens.size();
  }
  std::map<int, std::vector<BlockId>> blocks;
  total = 0;
  for (const auto& [sequence, length] : lengths) {
    auto& own = blocks[sequence];
    own.resize((length + static_cast<size_t>(block_size) - 1) / static_cast<size_t>(block_size));
    std::iota(own.begin(), own.end(), total);
    total += static_cast<int>(own.size());
  }
  return blocks;
}

absl::Status Run(const std::string& model, const std::string& device, const std::string& dtype) {
  const auto steps = ReadSteps(std::cin);
  if (!steps.ok()) return steps.status();
  RunnerOptions options;
  options.model_dir = model;
  options.device = device;
  options.dtype = dtype;
  options.max_batch_rows = 1;
  for (const auto& pass : *steps) {
    size_t rows = 0;
    for (const SequenceInput& input : pass) rows += input.tokens.size();
    options.max_batch_rows = std::max(options.max_batch_rows, static_cast<int>(rows));
  }
  const auto blocks = AssignBlocks(*steps, options.block_size, options.kv_blocks);
  auto runner = Runner::Load(options);
  if (!runner.ok()) return runner.status();

  std::map<int, int> positions;
  for (const auto& pass : *steps) {
    std::vector<SequenceRows> batch;
    for (const SequenceInput& input : pass) {
      int& position = positions[input.sequence];
      batch.push_back({.tokens = input.tokens,
                       .position = position,
                       .blocks = blocks.at(input.sequence),
                       .logit_rows = input.logit_rows});
      position += static_cast<int>(input.tokens.size());
    }
    const auto logits = (*runner)->Forward(batch);
    if (!logits.ok()) return logits.status();
    const size_t count = static_cast<size_t>(logits->rows) * static_cast<size_t>(logits->vocab);
    if (std::fwrite(logits->data, sizeof(float), count, stdout) != count) {
      return absl::UnavailableError("cannot write the logits");
    }
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: bench_logits MODEL_DIR DEVICE DTYPE < STEPS > LOGITS\n");
    return 1;
  }
  if (const auto status = Run(argv[1], argv[2], argv[3]); !status.ok()) {
    std::fprintf(stderr, "bench_logits: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  return std::fflush(stdout) == 0 ? 0 : 1;
}

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) { return outrider::Main(argc, argv); }
