// Compares layer by layer what two backends compute from the same tokens, and names the first difference that
// rounding does not explain.
//
//   bench_layers MODEL_DIR ENGINE:DEVICE:DTYPE ENGINE:DEVICE:DTYPE [TOLERANCE]
//
// for example: bench_layers models/tiny-target native:cpu:float32 torch:cpu:float32
//
// The keys and values of a layer are what it makes of the layers before it, and the logits are what the head
// makes of all. Differences are the largest ones, as shares of the spread of what the first backend computed.
// The default TOLERANCE is 0.0001, for float32. Exits with 1 if something differs.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/engine/runner.h"

namespace outrider {
namespace {

constexpr int kTokens = 100;

// What a backend computed.
struct Computed {
  std::vector<std::vector<float>> slots;  // by token: [layers, 2, kv_heads, head_dim]
  std::vector<float> logits;              // [tokens, vocab]
  DecoderSpec spec;
};

absl::StatusOr<Computed> Compute(const std::string& model_dir, const std::string& where) {
  const std::vector<std::string> parts = absl::StrSplit(where, ':');
  if (parts.size() < 3)
    return absl::InvalidArgumentError(absl::StrCat("'", where, "' is not ENGINE:DEVICE:DTYPE"));
  RunnerOptions options;
  options.model_dir = model_dir;
  options.engine = parts.front();
  options.dtype = parts.back();
  options.device = where.substr(parts.front().size() + 1,
                                where.size() - parts.front().size() - parts.back().size() - 2);  // cuda:N
  options.kv_blocks = (kTokens + options.block_size - 1) / options.block_size;
  const absl::StatusOr<std::unique_ptr<Runner>> runner = Runner::Load(options);
  if (!runner.ok()) return runner.status();

  Computed computed{.slots = {}, .logits = {}, .spec = (*runner)->config().decoder};
  std::vector<TokenId> tokens;
  for (int i = 0; i < kTokens; ++i) tokens.push_back(static_cast<TokenId>(i * 37 % computed.spec.vocab_size));
  std::vector<BlockId> blocks(static_cast<size_t>(options.kv_blocks));
  std::iota(blocks.begin(), blocks.end(), 0);
  const SequenceRows rows = {
      .tokens = tokens, .position = 0, .blocks = blocks, .logit_rows = static_cast<int>(tokens.size())};
  const absl::StatusOr<LogitsView> logits = (*runner)->Forward({&rows, 1});
  if (!logits.ok()) return logits.status();
  computed.logits.assign(logits->data, logits->data + static_cast<ptrdiff_t>(logits->rows) * logits->vocab);
  for (int i = 0; i < kTokens; ++i) {
    auto slot = (*runner)->ReadSlot(i / options.block_size, i % options.block_size);
    if (!slot.ok()) return slot.status();
    computed.slots.push_back(*std::move(slot));
  }
  return computed;
}

// The keys (kind 0) or values (kind 1) of all tokens in a layer.
std::vector<float> OfLayer(const Computed& computed, int layer, int kind) {
  const ptrdiff_t size = static_cast<ptrdiff_t>(computed.spec.kv_heads) * computed.spec.head_dim;
  std::vector<float> found;
  for (const std::vector<float>& slot : computed.slots) {
    const auto first = slot.begin() + (2 * layer + kind) * size;
    found.insert(found.end(), first, first + size);
  }
  return found;
}

double Difference(const std::vector<float>& expected, const std::vector<float>& found) {
  double sum = 0, squares = 0, largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    sum += expected[i];
    squares += static_cast<double>(expected[i]) * expected[i];
    const double difference = std::abs(static_cast<double>(found[i]) - expected[i]);
    if (!(difference <= largest)) largest = difference;
    if (std::isnan(largest)) break;
  }
  const double mean = sum / static_cast<double>(expected.size());
  return largest / std::sqrt(squares / static_cast<double>(expected.size()) - mean * mean);
}

// Whether all is alike.
absl::StatusOr<bool> Run(const std::string& model, const std::string& a, const std::string& b,
                         double tolerance) {
  const absl::StatusOr<Computed> expected = Compute(model, a), found = Compute(model, b);
  if (!expected.ok()) return expected.status();
  if (!found.ok()) return found.status();
  std::string first;
  const auto compare = [&](const std::string& what, const std::vector<float>& x,
                           const std::vector<float>& y) {
    const double difference = Difference(x, y);
    std::printf("%-20s %.1e\n", what.c_str(), difference);
    if (first.empty() && !(difference <= tolerance)) first = what;
  };
  for (int layer = 0; layer < expected->spec.layers; ++layer) {
    for (const auto& [kind, name] : {std::pair(0, "keys"), {1, "values"}}) {
      compare(absl::StrCat("layer ", layer, ", ", name), OfLayer(*expected, layer, kind),
              OfLayer(*found, layer, kind));
    }
  }
  compare("logits", expected->logits, found->logits);
  std::printf("%s\n", first.empty() ? "no difference is larger than rounding explains"
                                    : absl::StrCat("the first that differs: ", first).c_str());
  return first.empty();
}

int Main(int argc, char** argv) {
  double tolerance = 1e-4;
  if (argc < 4 || argc > 5 || (argc == 5 && !absl::SimpleAtod(argv[4], &tolerance))) {
    std::fprintf(stderr,
                 "usage: bench_layers MODEL_DIR ENGINE:DEVICE:DTYPE ENGINE:DEVICE:DTYPE [TOLERANCE]\n");
    return 1;
  }
  const absl::StatusOr<bool> alike = Run(argv[1], argv[2], argv[3], tolerance);
  if (!alike.ok()) std::fprintf(stderr, "bench_layers: %s\n", std::string(alike.status().message()).c_str());
  return alike.ok() && *alike ? 0 : 1;
}

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) { return outrider::Main(argc, argv); }
