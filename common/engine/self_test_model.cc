#include "common/engine/self_test.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/engine/stage_comparison.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

// Small, so that one position too many or too few is noticed.
constexpr int kWindow = 5;

DecoderConfig SmallConfig(const DecoderConfig& spec, int vocab) {
  DecoderConfig small = spec;
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

SelfTestModel::SelfTestModel(const DecoderConfig& spec, const RunnerOptions& options, int vocab, int tokens)
    : spec_(SmallConfig(spec, vocab)), options_(options) {
  options_.block_size = std::min(options.block_size, 16);
  options_.kv_blocks = BlocksFor(tokens);
  options_.max_batch_rows = 512;
  options_.parallel = {};
  options_.pool_bytes = nullptr;
  options_.observe = nullptr;
  options_.progress = nullptr;
  options_.matmul_algorithms.clear();  // they belong to the model that is served
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
  const std::unique_ptr<Backend> backend = OUTRIDER_TRY(BackendFor(options.engine, options.device));
  return backend->Load(spec_, weights_, options, threads);
}

std::vector<BlockId> SelfTestModel::Blocks(int first, int tokens) const {
  std::vector<BlockId> blocks(static_cast<size_t>(BlocksFor(tokens)));
  std::iota(blocks.rbegin(), blocks.rend(), first);
  return blocks;
}

double SelfTestTolerance(const std::string& dtype) {
  if (dtype == "float32") return 1e-4;
  return dtype == "fp8" ? 0.4 : 0.05;
}

namespace {

// How the sequence is cut into passes.
struct Way {
  const char* name;
  int chunk;            // tokens per pass, after the first one
  bool beside = false;  // another sequence is in each pass, before this one
  bool copied = false;  // the last passes read a copy of the first block
  int first = chunk;    // tokens of the first pass
};
constexpr Way kInOnePass = {"in one pass", kComparedTokens};
constexpr Way kWays[] = {{"in chunks of 64", 64},
                         {"in chunks of 7", 7},
                         {"token by token", 1, /*beside=*/false, /*copied=*/false, /*first=*/250},
                         {"beside another sequence", 16, /*beside=*/true},
                         {"with a copied block", 32, /*beside=*/false, /*copied=*/true}};
constexpr int kRowsBeside = 3;
// The tree reaches over several blocks.
constexpr int kTreeDepth = 20, kBeforeTree = kComparedTokens - kTreeDepth;

// The logits of all positions, and after them the keys and values of all positions.
using Computed = std::vector<std::vector<float>>;

// Adds the keys and values of all positions.
absl::Status ReadSlots(Model& model, const SelfTestModel& small, absl::Span<const BlockId> blocks,
                       Computed& computed) {
  for (int position = 0; position < kComparedTokens; ++position) {
    std::vector<float> slot =
        OUTRIDER_TRY(ReadSlot(model, small.spec(), small.options().block_size, blocks, position));
    computed.push_back(std::move(slot));
  }
  return absl::OkStatus();
}

absl::StatusOr<Computed> Compute(Model& model, const SelfTestModel& small, const Way& way) {
  const std::vector<TokenId> tokens = ComparedTokens(small.spec().vocab_size);
  const absl::Span<const TokenId> all = tokens;
  std::vector<BlockId> blocks = small.Blocks(0, kComparedTokens);
  const int end_of_blocks = static_cast<int>(blocks.size());
  const std::vector<BlockId> others = small.Blocks(end_of_blocks, kComparedTokens);
  Computed computed;
  int position = 0, passes = 0;
  while (position < kComparedTokens) {
    const int rows = std::min(passes == 0 ? way.first : way.chunk, kComparedTokens - position);
    if (way.copied && blocks[0] < end_of_blocks && position >= small.options().block_size) {
      model.CopyBlock(blocks[0], end_of_blocks);
      blocks[0] = end_of_blocks;
    }
    std::vector<SequenceRows> batch;
    if (way.beside) {
      batch.push_back({.tokens = all.last(kRowsBeside),
                       .position = passes * kRowsBeside,
                       .blocks = others,
                       .logit_rows = 1});
    }
    batch.push_back({.tokens = all.subspan(static_cast<size_t>(position), static_cast<size_t>(rows)),
                     .position = position,
                     .blocks = blocks,
                     .logit_rows = rows});
    const LogitsView logits = OUTRIDER_TRY(model.Forward(batch, {}));
    for (int r = logits.rows - rows; r < logits.rows; ++r)
      computed.emplace_back(logits.row(r).begin(), logits.row(r).end());
    position += rows;
    ++passes;
  }
  OUTRIDER_TRY(ReadSlots(model, small, blocks, computed));
  return computed;
}

// Computes the last tokens as a path of a tree, in which each token has an earlier sibling off the path.
// Then moves the path to where a chain would be.
absl::StatusOr<Computed> ComputeAsTree(Model& model, const SelfTestModel& small) {
  const std::vector<TokenId> tokens = ComparedTokens(small.spec().vocab_size);
  const absl::Span<const TokenId> prompt = absl::MakeConstSpan(tokens).first(kBeforeTree);
  const std::vector<BlockId> blocks = small.Blocks(0, kBeforeTree + 2 * kTreeDepth);
  std::vector<TokenId> nodes;
  std::vector<int> parents;
  std::vector<SlotMove> moves;
  for (int depth = 0; depth < kTreeDepth; ++depth) {
    const TokenId token = tokens[static_cast<size_t>(kBeforeTree + depth)];
    nodes.insert(nodes.end(), {(token + 1) % small.spec().vocab_size, token});
    parents.insert(parents.end(), 2, 2 * depth - 1);
    moves.push_back({kBeforeTree + 2 * depth + 1, kBeforeTree + depth});
  }
  Computed computed;
  const auto forward = [&](const SequenceRows& rows, int first, int step) -> absl::Status {
    const LogitsView logits = OUTRIDER_TRY(model.Forward({&rows, 1}, {}));
    for (int r = first; r < logits.rows; r += step)
      computed.emplace_back(logits.row(r).begin(), logits.row(r).end());
    return absl::OkStatus();
  };
  OUTRIDER_TRY(forward({.tokens = prompt, .position = 0, .blocks = blocks, .logit_rows = kBeforeTree},
                       /*first=*/0, /*step=*/1));
  OUTRIDER_TRY(forward({.tokens = nodes,
                        .position = kBeforeTree,
                        .blocks = blocks,
                        .logit_rows = 2 * kTreeDepth,
                        .tree_begin = kBeforeTree,
                        .parents = parents},
                       /*first=*/1, /*step=*/2));
  model.MoveSlots(blocks, moves);
  OUTRIDER_TRY(ReadSlots(model, small, blocks, computed));
  return computed;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// The largest relative difference between the results of one way and those of one pass. FAILED_PRECONDITION,
// naming the position, if they differ more than the model claims.
absl::StatusOr<double> Compare(const Computed& expected, const Computed& found, absl::string_view way,
                               bool same_bits, const std::string& dtype) {
  const double tolerance = SelfTestTolerance(dtype);
  double largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double difference = RelativeDifference(expected[i], found[i]);
    largest = std::max(largest, difference);
    if (same_bits ? SameBits(expected[i], found[i]) : difference <= tolerance) continue;
    const bool is_logits = i < static_cast<size_t>(kComparedTokens);
    return absl::FailedPreconditionError(absl::StrFormat(
        "the %s of position %d, computed %s, differ by %.2g of their size from those in one pass, and %s",
        is_logits ? "logits" : "keys and values", i % static_cast<size_t>(kComparedTokens), way, difference,
        same_bits ? "must not at all" : absl::StrFormat("%s explains %g at most", dtype, tolerance)));
  }
  return largest;
}

}  // namespace

absl::StatusOr<std::string> CheckRows(Model& model, const SelfTestModel& small) {
  const Computed expected = OUTRIDER_TRY(Compute(model, small, kInOnePass));
  double largest = 0;
  for (const Way& way : kWays) {
    const Computed found = OUTRIDER_TRY(Compute(model, small, way));
    const double difference =
        OUTRIDER_TRY(Compare(expected, found, way.name, model.row_invariant(), model.dtype()));
    largest = std::max(largest, difference);
  }
  const std::string chains =
      model.row_invariant()
          ? "alone, together, in chunks, beside others, in copied blocks: the same bits"
          : absl::StrFormat("alone, together, in chunks: the same up to rounding, %.2g; no more is claimed",
                            largest);
  const Computed tree = OUTRIDER_TRY(ComputeAsTree(model, small));
  const double difference =
      OUTRIDER_TRY(Compare(expected, tree, "as a tree", model.tree_row_invariant(), model.dtype()));
  return absl::StrCat(chains, model.tree_row_invariant()
                                  ? "; as a tree: the same bits"
                                  : absl::StrFormat("; as a tree: up to rounding, %.2g", difference));
}

}  // namespace outrider
