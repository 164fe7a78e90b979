#include "common/engine/self_test_rows.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/engine/stage_comparison.h"

namespace outrider {
namespace {

// How the sequence is cut into passes.
struct Way {
  const char* name;
  int chunk;            // tokens a pass, after the first one
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

// By position: its logits, and its keys and values.
using Computed = std::vector<std::vector<float>>;

absl::StatusOr<Computed> Compute(Model& model, const SelfTestModel& small, const Way& way) {
  const DecoderSpec& spec = small.spec();
  const std::vector<TokenId> tokens = ComparedTokens(spec.vocab_size);
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
    const absl::StatusOr<LogitsView> logits = model.Forward(batch);
    if (!logits.ok()) return logits.status();
    for (int r = logits->rows - rows; r < logits->rows; ++r)
      computed.emplace_back(logits->row(r).begin(), logits->row(r).end());
    position += rows;
    ++passes;
  }
  std::vector<float> slot(static_cast<size_t>(2 * spec.layers * spec.kv_heads) *
                          static_cast<size_t>(spec.head_dim));
  for (position = 0; position < kComparedTokens; ++position) {
    const int block_size = small.options().block_size;
    const absl::Status status = model.ReadSlot(blocks[static_cast<size_t>(position / block_size)],
                                               position % block_size, absl::MakeSpan(slot));
    if (!status.ok()) return status;
    computed.push_back(slot);
  }
  return computed;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

absl::StatusOr<std::string> CheckRows(Model& model, const SelfTestModel& small) {
  const absl::StatusOr<Computed> expected = Compute(model, small, kInOnePass);
  if (!expected.ok()) return expected.status();
  const double tolerance = SelfTestTolerance(model.dtype());
  double largest = 0;
  for (const Way& way : kWays) {
    const absl::StatusOr<Computed> found = Compute(model, small, way);
    if (!found.ok()) return found.status();
    for (size_t i = 0; i < expected->size(); ++i) {
      const double difference = RelativeDifference((*expected)[i], (*found)[i]);
      largest = std::max(largest, difference);
      if (model.row_invariant() ? SameBits((*expected)[i], (*found)[i]) : difference <= tolerance) continue;
      const bool is_logits = i < static_cast<size_t>(kComparedTokens);
      return absl::FailedPreconditionError(absl::StrFormat(
          "the %s of position %d, computed %s, differ by %.2g of their size from those in one pass, and "
          "%s",
          is_logits ? "logits" : "keys and values", i % static_cast<size_t>(kComparedTokens), way.name,
          difference,
          model.row_invariant() ? "must not at all"
                                : absl::StrFormat("%s explains %g at most", model.dtype(), tolerance)));
    }
  }
  if (model.row_invariant())
    return std::string("alone, together, in chunks, beside others, in copied blocks: the same bits");
  return absl::StrFormat("alone, together, in chunks: the same up to rounding, %.2g; no more is claimed",
                         largest);
}

}  // namespace outrider
