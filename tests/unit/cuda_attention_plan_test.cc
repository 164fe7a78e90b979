// Attention plans, interpreted as the kernels do.
#include "common/engine/cuda/attention_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <vector>

namespace outrider::cuda {
namespace {

using ::testing::HasSubstr;

constexpr AttentionShape kShape3B = {.query_heads = 24, .kv_heads = 8, .head_dim = 128, .block_size = 16};
constexpr AttentionShape kShape1B = {.query_heads = 32, .kv_heads = 8, .head_dim = 64, .block_size = 16};

// Sequences with blocks of their own: sequence s has s * 10000, s * 10000 + 1, ..., more than it needs.
class Batch {
 public:
  Batch& Add(int rows, int length) {
    static const std::vector<BlockId>* const kBlocks = [] {
      auto* blocks = new std::vector<BlockId>(100000);
      std::iota(blocks->begin(), blocks->end(), 0);
      return blocks;
    }();
    sequences_.push_back(
        {rows, length,
         absl::MakeConstSpan(*kBlocks).subspan(10000 * sequences_.size(), static_cast<size_t>(length))});
    return *this;
  }

  const std::vector<AttentionSequence>& sequences() const { return sequences_; }

 private:
  std::vector<AttentionSequence> sequences_;
};

// A written plan.
class Plan {
 public:
  Plan(const AttentionShape& shape, const AttentionSize& size, absl::Span<const AttentionSequence> batch)
      : shape(shape), size(size), layout(size), data_(layout.bytes / sizeof(int32_t), -7) {
    auto bytes = WritePlan(shape, size, batch, reinterpret_cast<char*>(data_.data()));
    status = bytes.status();
    if (bytes.ok()) copied = *bytes;
  }

  int at(size_t array, int index) const {
    return data_[array / sizeof(int32_t) + static_cast<size_t>(index)];
  }
  bool valid(int item) const {
    return (reinterpret_cast<const char*>(data_.data()) + layout.valid)[item] != 0;
  }
  // A sequence's length as paged_kv_t::get_length computes it.
  int length(int sequence) const {
    const int blocks = at(layout.block_start, sequence + 1) - at(layout.block_start, sequence);
    return blocks == 0 ? 0 : (blocks - 1) * shape.block_size + at(layout.last_length, sequence);
  }
  int rows(int sequence) const {
    return at(layout.query_start, sequence + 1) - at(layout.query_start, sequence);
  }

  const AttentionShape shape;
  const AttentionSize size;
  const PlanLayout layout;
  absl::Status status;
  size_t copied = 0;

 private:
  std::vector<int32_t> data_;
};

using Positions = std::pair<int, int>;  // [first, end)

// Simulates FlashInfer's kernel on a plan: for each partial result (where it is written, query head in its
// group), the positions whose keys it covers. Fails the test if two thread blocks write to one place.
std::map<std::pair<int, int>, Positions> WhatIsComputed(const Plan& plan) {
  std::map<std::pair<int, int>, Positions> computed;
  const PlanLayout& layout = plan.layout;
  const int group = plan.shape.query_heads / plan.shape.kv_heads;
  const bool partition = plan.size.partials > 0;
  const int split_size = plan.at(layout.split_size, 0);
  for (int item = 0; item < plan.size.items; ++item) {
    if (!plan.valid(item)) continue;
    const int s = plan.at(layout.item_sequence, item), split = plan.at(layout.item_split, item);
    const int length = plan.length(s), rows = plan.rows(s);
    const int first = partition ? std::min(split * split_size, length) : 0;
    const int end = partition ? std::min((split + 1) * split_size, length) : length;
    for (int i = 0; i < kQueryTile; ++i) {
      const int packed = plan.at(layout.item_tile, item) * kQueryTile + i;
      const int row = packed / group, head = packed % group;
      if (row >= rows) continue;
      const int splits = (length + split_size - 1) / split_size;
      const int place = plan.at(layout.output_start, s) + (partition ? row * splits + split : row);
      const int causal_end = std::min(end, length - rows + row + 1);
      EXPECT_TRUE(computed.emplace(std::pair(place, head), Positions(first, causal_end)).second)
          << "twice: place " << place << ", head " << head;
    }
  }
  return computed;
}

// Every head of every row attends to all positions up to its own, in splits that follow from the position.
void ExpectCausalAttention(const Plan& plan, absl::Span<const AttentionSequence> batch) {
  ASSERT_TRUE(plan.status.ok()) << plan.status;
  const auto computed = WhatIsComputed(plan);
  const int group = plan.shape.query_heads / plan.shape.kv_heads;
  int row = 0;
  for (const AttentionSequence& sequence : batch) {
    for (int r = 0; r < sequence.rows; ++r, ++row) {
      const int position = sequence.length - sequence.rows + r;
      const bool merges = plan.size.partials > 0;
      const int splits = merges ? plan.at(plan.layout.row_splits, row) : 1;
      const int first = merges ? plan.at(plan.layout.row_partial, row) : row;
      ASSERT_EQ(splits, position / kSplit + 1) << "row " << row;
      ASSERT_LE(first + splits, merges ? plan.size.partials : plan.size.rows);
      for (int head = 0; head < group; ++head) {
        for (int split = 0; split < splits; ++split) {
          const auto found = computed.find({first + split, head});
          ASSERT_NE(found, computed.end()) << "row " << row << ", head " << head << ", split " << split;
          EXPECT_EQ(found->second, Positions(split * kSplit, std::min((split + 1) * kSplit, position + 1)));
        }
      }
    }
  }
  for (; row < plan.size.rows; ++row) EXPECT_EQ(plan.at(plan.layout.row_splits, row), 0);
}

void ExpectBlocks(const Plan& plan, absl::Span<const AttentionSequence> batch) {
  int blocks = 0;
  for (int s = 0; s < static_cast<int>(batch.size()); ++s) {
    const AttentionSequence& sequence = batch[static_cast<size_t>(s)];
    EXPECT_EQ(plan.length(s), sequence.length);
    EXPECT_EQ(plan.rows(s), sequence.rows);
    EXPECT_EQ(plan.at(plan.layout.block_start, s), blocks);
    for (int p = 0; p < sequence.length; p += plan.shape.block_size, ++blocks) {
      EXPECT_EQ(plan.at(plan.layout.blocks, blocks),
                sequence.blocks[static_cast<size_t>(p / plan.shape.block_size)]);
    }
  }
  EXPECT_EQ(plan.copied, plan.layout.blocks + sizeof(int32_t) * static_cast<size_t>(blocks));
  for (int s = static_cast<int>(batch.size()); s < plan.size.sequences; ++s) {
    EXPECT_EQ(plan.length(s), 0);
    EXPECT_EQ(plan.rows(s), 0);
  }
  EXPECT_EQ(plan.at(plan.layout.block_start, plan.size.sequences), blocks);
}

void ExpectRight(const AttentionShape& shape, const AttentionSize& size,
                 absl::Span<const AttentionSequence> batch) {
  const Plan plan(shape, size, batch);
  ExpectCausalAttention(plan, batch);
  ExpectBlocks(plan, batch);
}

TEST(AttentionPlan, CoversEveryPositionOfEveryRowOnce) {
  for (const AttentionShape& shape :
       {kShape3B, kShape1B, AttentionShape{4, 4, 64, 16}, AttentionShape{40, 2, 128, 32}}) {
    for (const auto& [rows, length] : {std::tuple(1, 1),
                                       {1, 256},
                                       {1, 257},
                                       {5, 259},
                                       {9, 4000},
                                       {300, 300},
                                       {700, 1500},
                                       {16, 16},
                                       {17, 273}}) {
      const auto batch = Batch().Add(rows, length).sequences();
      ExpectRight(shape, SizeOf(shape, batch), batch);
    }
  }
}

TEST(AttentionPlan, HoldsSequencesOfDifferentLengths) {
  const Batch batch = Batch().Add(1, 700).Add(33, 33).Add(6, 261).Add(1, 1).Add(4, 256);
  ExpectRight(kShape3B, SizeOf(kShape3B, batch.sequences()), batch.sequences());
}

TEST(AttentionPlan, FillsALaunchThatHasRoomForMore) {
  const AttentionSize size = LargestSize(kShape3B, 8, 40, 2000);
  for (const Batch& batch : {Batch().Add(5, 1999).Add(5, 300), Batch().Add(3, 7), Batch().Add(1, 2000)}) {
    ExpectRight(kShape3B, size, batch.sequences());
  }
}

TEST(AttentionPlan, WritesNoPartialResultsWhereNothingIsLongerThanASplit) {
  const auto batch = Batch().Add(5, kSplit).Add(1, 3).sequences();
  EXPECT_EQ(SizeOf(kShape1B, batch).partials, 0);
  ExpectRight(kShape1B, SizeOf(kShape1B, batch), batch);
}

TEST(AttentionPlan, LeavesOutPiecesThatNoRowOfATileAttendsTo) {
  // 512 positions, all of them rows: 96 tiles. Those of the first half attend to one of the two splits.
  const auto batch = Batch().Add(512, 512).sequences();
  EXPECT_EQ(SizeOf(kShape3B, batch).items, 48 + 2 * 48);
}

// The partial results that a row is merged from, by absolute positions. They must not depend on the rest of
// the batch.
std::vector<Positions> PiecesOfLastRow(const Batch& batch, const AttentionSize& size, int row) {
  const Plan plan(kShape3B, size, batch.sequences());
  EXPECT_TRUE(plan.status.ok()) << plan.status;
  const auto computed = WhatIsComputed(plan);
  std::vector<Positions> pieces;
  for (int i = 0; i < plan.at(plan.layout.row_splits, row); ++i) {
    pieces.push_back(computed.at({plan.at(plan.layout.row_partial, row) + i, 0}));
  }
  return pieces;
}

TEST(AttentionPlan, ARowIsMadeOfTheSamePiecesInAnyCompany) {
  const AttentionSize size = LargestSize(kShape3B, 4, 700, 2048);
  const auto alone = PiecesOfLastRow(Batch().Add(1, 600), size, 0);
  ASSERT_EQ(alone, (std::vector<Positions>{{0, 256}, {256, 512}, {512, 600}}));
  EXPECT_EQ(PiecesOfLastRow(Batch().Add(600, 600), size, 599), alone);
  EXPECT_EQ(PiecesOfLastRow(Batch().Add(9, 604), size, 4), alone);
  EXPECT_EQ(PiecesOfLastRow(Batch().Add(5, 2048).Add(3, 600).Add(1, 1), size, 7), alone);
  EXPECT_EQ(PiecesOfLastRow(Batch().Add(600, 1000), size, 199), alone);
}

TEST(AttentionSize, OfAnyBatchIsWithinTheLargest) {
  for (int rows : {1, 2, 5, 6, 9, 16, 100}) {
    for (int length : {100, 256, 257, 1000, 3001}) {
      Batch batch;
      for (int s = 0; s < 7; ++s) batch.Add(rows, std::max(rows, length - 10 * s));
      EXPECT_TRUE(LargestSize(kShape3B, 7, 7 * rows, length).Holds(SizeOf(kShape3B, batch.sequences())))
          << rows << " rows of " << length;
    }
  }
}

TEST(AttentionSize, HoldsShortBatchesOnlyWhereALaunchThatMergesHasRoomForThem) {
  const AttentionSize five = SizeOf(kShape3B, Batch().Add(5, 5).sequences());
  AttentionSize size = LargestSize(kShape3B, 1, 5, 1000);
  EXPECT_TRUE(size.Holds(five));
  size.partials = 4;
  EXPECT_FALSE(size.Holds(five));
}

TEST(CutIntoPasses, LeavesWhatFitsInOnePiece) {
  const auto batch = Batch().Add(7, 30).Add(1, 500).sequences();
  const auto passes = CutIntoPasses(kShape3B, batch, SizeOf(kShape3B, batch));
  ASSERT_TRUE(passes.ok()) << passes.status();
  ASSERT_EQ(passes->size(), 1u);
  EXPECT_EQ((*passes)[0].sequences.size(), 2u);
}

TEST(CutIntoPasses, KeepsRowsTheirOrderAndPositions) {
  const auto batch = Batch().Add(3, 900).Add(1000, 3000).Add(64, 64).Add(1, 2).sequences();
  AttentionSize capacity = SizeOf(kShape3B, batch);
  capacity.partials = 1500;
  const auto passes = CutIntoPasses(kShape3B, batch, capacity);
  ASSERT_TRUE(passes.ok()) << passes.status();
  EXPECT_GT(passes->size(), 5u);

  std::vector<std::pair<BlockId, int>> expected, rows;  // sequence, position
  for (const AttentionSequence& sequence : batch) {
    for (int r = 0; r < sequence.rows; ++r) {
      expected.emplace_back(sequence.blocks[0], sequence.length - sequence.rows + r);
    }
  }
  for (const AttentionPass& pass : *passes) {
    EXPECT_EQ(pass.first_row, static_cast<int>(rows.size()));
    EXPECT_FALSE(pass.sequences.empty());
    EXPECT_TRUE(capacity.Holds(SizeOf(kShape3B, pass.sequences)));
    ExpectRight(kShape3B, SizeOf(kShape3B, pass.sequences), pass.sequences);
    for (const AttentionSequence& sequence : pass.sequences) {
      for (int r = 0; r < sequence.rows; ++r) {
        rows.emplace_back(sequence.blocks[0], sequence.length - sequence.rows + r);
      }
    }
  }
  EXPECT_EQ(rows, expected);
}

TEST(CutIntoPasses, RefusesARowThatCannotFit) {
  AttentionSize capacity = LargestSize(kShape3B, 4, 100, 1024);
  capacity.partials = 3;
  const auto passes = CutIntoPasses(kShape3B, Batch().Add(2, 1000).sequences(), capacity);
  EXPECT_EQ(passes.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(passes.status().message()), HasSubstr("position 998"));
}

TEST(AttentionPlan, RefusesWhatIsNotWellFormedOrDoesNotFit) {
  const AttentionSize size = LargestSize(kShape3B, 4, 100, 1000);
  const auto message = [&](const AttentionSequence& sequence) {
    const Plan plan(kShape3B, size, {sequence});
    EXPECT_EQ(plan.status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(plan.status.message());
  };
  const std::vector<BlockId> two = {1, 2};
  EXPECT_THAT(message({0, 5, two}), HasSubstr("0 rows"));
  EXPECT_THAT(message({6, 5, two}), HasSubstr("6 rows of a sequence of 5"));
  EXPECT_THAT(message({1, 33, two}), HasSubstr("2 blocks of 16 for a sequence of 33"));
  EXPECT_THAT(message(Batch().Add(101, 101).sequences()[0]), HasSubstr("101 rows"));
  EXPECT_FALSE(CutIntoPasses(kShape3B, std::vector<AttentionSequence>{{1, 33, two}}, size).ok());
}

}  // namespace
}  // namespace outrider::cuda
