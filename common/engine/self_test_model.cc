#include "common/engine/self_test_model.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "common/engine/stage_comparison.h"

namespace outrider {
namespace {

// Small, so that one position too many or too few is noticed.
constexpr int kWindow = 5;

DecoderSpec SmallSpec(const DecoderSpec& spec, int vocab) {
  DecoderSpec small = spec;
  small.vocab_size = vocab;
  small.hidden_size = small.intermediate_size = 256;
  small.layers = 2;
  if (spec.sliding_window > 0) {
    small.sliding_window = std::min(spec.sliding_window, kWindow);
    small.slides = {true, false};
  }
  small.heads = spec.heads / spec.kv_heads;
  small.kv_heads = 1;
  small.max_position_embeddings = kComparedTokens;
  small.tie_word_embeddings = false;
  return small;
}

}  // namespace

absl::StatusOr<TensorView> MadeUpWeights::Get(absl::string_view name, absl::Span<const int64_t> shape) const {
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

float MadeUpWeights::Next() const {
  state_ = state_ * 1664525 + 1013904223;
  return static_cast<float>(static_cast<int32_t>(state_)) * 0x1p-31f;
}

SelfTestModel::SelfTestModel(const DecoderSpec& spec, const RunnerOptions& options, int vocab, int tokens)
    : spec_(SmallSpec(spec, vocab)), options_(options) {
  options_.block_size = std::min(options.block_size, 16);
  options_.kv_blocks = BlocksFor(tokens);
  options_.max_batch_rows = 512;
  options_.parallel = {};
  options_.pool_bytes = nullptr;
  options_.observe = nullptr;
  options_.progress = nullptr;
  options_.matmul_algorithms.clear();  // these are another model's
  options_.frequent_tokens = 0;
}

absl::StatusOr<std::unique_ptr<Model>> SelfTestModel::Load(const Backend& backend, ThreadPool& threads,
                                                           Observe observe) const {
  RunnerOptions options = options_;
  options.observe = std::move(observe);
  return backend.Load(spec_, weights_, options, threads);
}

absl::StatusOr<std::unique_ptr<Model>> SelfTestModel::LoadExact(const std::string& engine,
                                                                ThreadPool& threads, Observe observe) const {
  RunnerOptions options = options_;
  options.engine = engine;
  options.device = "cpu";
  options.dtype = "float32";
  options.observe = std::move(observe);
  const absl::StatusOr<std::unique_ptr<Backend>> backend = BackendFor(options.engine, options.device);
  if (!backend.ok()) return backend.status();
  return (*backend)->Load(spec_, weights_, options, threads);
}

std::vector<BlockId> SelfTestModel::Blocks(int first, int tokens) const {
  std::vector<BlockId> blocks(static_cast<size_t>(BlocksFor(tokens)));
  std::iota(blocks.rbegin(), blocks.rend(), first);
  return blocks;
}

double SelfTestTolerance(const std::string& dtype) {
  if (dtype == "float32") return 1e-4;
  return dtype == "fp8" ? 0.2 : 0.05;
}

}  // namespace outrider
