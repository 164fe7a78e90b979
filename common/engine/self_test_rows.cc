#include "common/engine/self_test_model.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/engine/stage_comparison.h"

namespace outrider {
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

// For each position: its logits, and its keys and values.
using Computed = std::vector<std::vector<float>>;

// Adds the keys and values of all positions.
absl::Status ReadSlots(Model& model, const SelfTestModel& small, absl::Span<const BlockId> blocks,
                       Computed& computed) {
  const DecoderSpec& spec = small.spec();
  std::vector<float> slot(static_cast<size_t>(2 * spec.layers * spec.kv_heads) *
                          static_cast<size_t>(spec.head_dim));
  for (int position = 0; position < kComparedTokens; ++position) {
    const int block_size = small.options().block_size;
    const absl::Status status = model.ReadSlot(blocks[static_cast<size_t>(position / block_size)],
                                               position % block_size, absl::MakeSpan(slot));
    if (!status.ok()) return status;
    computed.push_back(slot);
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
    const absl::StatusOr<LogitsView> logits = model.Forward(batch, {});
    if (!logits.ok()) return logits.status();
    for (int r = logits->rows - rows; r < logits->rows; ++r)
      computed.emplace_back(logits->row(r).begin(), logits->row(r).end());
    position += rows;
    ++passes;
  }
  if (absl::Status status = ReadSlots(model, small, blocks, computed); !status.ok()) return status;
  return computed;
}

// Computes the last tokens as a path of a tree, each after a sibling that is not on it, then moves the path
// to where a chain has it.
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
  const auto forward = [&](const SequenceRows& rows, int first, int step) {
    const absl::StatusOr<LogitsView> logits = model.Forward({&rows, 1}, {});
    for (int r = first; logits.ok() && r < logits->rows; r += step)
      computed.emplace_back(logits->row(r).begin(), logits->row(r).end());
    return logits.status();
  };
  absl::Status status =
      forward({.tokens = prompt, .position = 0, .blocks = blocks, .logit_rows = kBeforeTree}, /*first=*/0,
              /*step=*/1);
  if (status.ok()) {
    status = forward({.tokens = nodes,
                      .position = kBeforeTree,
                      .blocks = blocks,
                      .logit_rows = 2 * kTreeDepth,
                      .tree_begin = kBeforeTree,
                      .parents = parents},
                     /*first=*/1, /*step=*/2);
  }
  if (!status.ok()) return status;
  model.MoveSlots(blocks, moves);
  if (status = ReadSlots(model, small, blocks, computed); !status.ok()) return status;
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
  const absl::StatusOr<Computed> expected = Compute(model, small, kInOnePass);
  if (!expected.ok()) return expected.status();
  double largest = 0;
  for (const Way& way : kWays) {
    const absl::StatusOr<Computed> found = Compute(model, small, way);
    if (!found.ok()) return found.status();
    const absl::StatusOr<double> difference =
        Compare(*expected, *found, way.name, model.row_invariant(), model.dtype());
    if (!difference.ok()) return difference.status();
    largest = std::max(largest, *difference);
  }
  const std::string chains =
      model.row_invariant()
          ? "alone, together, in chunks, beside others, in copied blocks: the same bits"
          : absl::StrFormat("alone, together, in chunks: the same up to rounding, %.2g; no more is claimed",
                            largest);
  const absl::StatusOr<Computed> tree = ComputeAsTree(model, small);
  if (!tree.ok()) return tree.status();
  const absl::StatusOr<double> difference =
      Compare(*expected, *tree, "as a tree", model.tree_row_invariant(), model.dtype());
  if (!difference.ok()) return difference.status();
  return absl::StrCat(chains, model.tree_row_invariant()
                                  ? "; as a tree: the same bits"
                                  : absl::StrFormat("; as a tree: up to rounding, %.2g", *difference));
}

}  // namespace outrider
