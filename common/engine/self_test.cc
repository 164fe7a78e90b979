#include "common/engine/self_test.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/engine/decoder/tensor_source.h"

namespace outrider {
namespace {

// More positions than a split of attention has on a GPU (256), so that results are merged.
constexpr int kPromptTokens = 280, kFurtherTokens = 5;
// Few, so that one position too many or too few is noticed.
constexpr int kWindow = 5;

// Rounding's share of the logits' spread, as the root mean square: several times what a correct engine shows.
double Tolerance(const std::string& dtype) { return dtype == "fp8" ? 0.2 : 0.05; }

// Tensors of the shapes that are asked for: norms of ones, and matrices of numbers in (-a, a) such that
// products with them keep the size of their input.
class MadeUpWeights final : public TensorSource {
 public:
  absl::StatusOr<TensorView> Get(absl::string_view name, absl::Span<const int64_t> shape) const override {
    std::vector<float>& values = tensors_[std::string(name)];
    const int64_t size = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
    if (values.empty()) {
      const float bound = std::sqrt(3.0f / static_cast<float>(shape.back()));
      for (int64_t i = 0; i < size; ++i)
        values.push_back(shape.size() == 1 ? 1 + 0.5f * Next() : bound * Next());
    }
    return TensorView{
        ElementType::kFloat32, {shape.begin(), shape.end()}, reinterpret_cast<const char*>(values.data())};
  }

 private:
  // In [-1, 1), from a linear congruential generator: all that matters is that the numbers differ.
  float Next() const {
    state_ = state_ * 1664525 + 1013904223;
    return static_cast<float>(static_cast<int32_t>(state_)) * 0x1p-31f;
  }

  mutable uint32_t state_ = 1;
  mutable std::map<std::string, std::vector<float>> tensors_;
};

// Two layers with one of the model's groups of heads, in sizes that every backend supports. If layers of the
// model slide, one of the two does.
DecoderSpec SmallSpec(const DecoderSpec& spec) {
  DecoderSpec small = spec;
  small.vocab_size = small.hidden_size = small.intermediate_size = 256;
  small.layers = 2;
  if (spec.sliding_window > 0) {
    small.sliding_window = std::min(spec.sliding_window, kWindow);
    small.slides = {true, false};
  }
  small.heads = spec.heads / spec.kv_heads;
  small.kv_heads = 1;
  small.max_position_embeddings = kPromptTokens + kFurtherTokens;
  small.tie_word_embeddings = false;
  return small;
}

// The logits of the tokens after the prompt.
absl::StatusOr<std::vector<float>> Run(const Backend& backend, const DecoderSpec& spec,
                                       const TensorSource& weights, const RunnerOptions& options,
                                       ThreadPool& threads) {
  const absl::StatusOr<std::unique_ptr<Model>> model = backend.Load(spec, weights, options, threads);
  if (!model.ok()) return model.status();
  std::vector<TokenId> tokens;
  for (int i = 0; i < kPromptTokens + kFurtherTokens; ++i) tokens.push_back(i * 37 % spec.vocab_size);
  std::vector<BlockId> blocks(static_cast<size_t>(options.kv_blocks));
  std::iota(blocks.rbegin(), blocks.rend(), 0);
  const absl::Span<const TokenId> all = tokens;
  const SequenceRows prompt = {
      .tokens = all.first(kPromptTokens), .position = 0, .blocks = blocks, .logit_rows = 0};
  if (const auto fed = (*model)->Forward({&prompt, 1}); !fed.ok()) return fed.status();
  const SequenceRows further = {.tokens = all.subspan(kPromptTokens),
                                .position = kPromptTokens,
                                .blocks = blocks,
                                .logit_rows = kFurtherTokens};
  const absl::StatusOr<LogitsView> logits = (*model)->Forward({&further, 1});
  if (!logits.ok()) return logits.status();
  return std::vector<float>(logits->data, logits->data + kFurtherTokens * spec.vocab_size);
}

double RootMeanSquare(const std::vector<float>& values) {
  double squares = 0;
  for (const float x : values) squares += static_cast<double>(x) * x;
  return std::sqrt(squares / static_cast<double>(values.size()));
}

}  // namespace

absl::Status SelfTest(const Backend& backend, const DecoderSpec& spec, const RunnerOptions& options,
                      ThreadPool& threads) {
  const DecoderSpec small = SmallSpec(spec);
  const MadeUpWeights weights;
  RunnerOptions tested = options;
  tested.block_size = std::min(options.block_size, 16);
  tested.kv_blocks = (kPromptTokens + kFurtherTokens + tested.block_size - 1) / tested.block_size;
  tested.max_batch_rows = kPromptTokens;
  tested.progress = nullptr;
  tested.matmul_algorithms.clear();  // which are another model's
  RunnerOptions exact = tested;
  exact.engine = "native";
  exact.device = "cpu";
  exact.dtype = "float32";
  const absl::StatusOr<std::unique_ptr<Backend>> cpu = BackendFor(exact.engine, exact.device);
  if (!cpu.ok()) return cpu.status();
  const absl::StatusOr<std::vector<float>> expected = Run(**cpu, small, weights, exact, threads);
  if (!expected.ok()) return expected.status();
  absl::StatusOr<std::vector<float>> found = Run(backend, small, weights, tested, threads);
  const auto refuse = [&](const std::string& why) {
    return absl::FailedPreconditionError(absl::StrCat("--device ", options.device,
                                                      ": the kernels fail their test: ", why,
                                                      "; --engine torch does without them"));
  };
  if (absl::IsUnimplemented(found.status())) return refuse(std::string(found.status().message()));
  if (!found.ok()) return found.status();

  for (size_t i = 0; i < found->size(); ++i) (*found)[i] -= (*expected)[i];
  const double difference = RootMeanSquare(*found) / RootMeanSquare(*expected);
  if (difference <= Tolerance(options.dtype)) return absl::OkStatus();
  return refuse(absl::StrFormat(
      "logits differ from the CPU's by %.3f of their size, and %s explains %.2f at most", difference,
      options.dtype == "auto" ? "bfloat16" : options.dtype, Tolerance(options.dtype)));
}

}  // namespace outrider
