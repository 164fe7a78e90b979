// Plans of steps with trees, interpreted as the kernels do. Piece by piece, a node attends to what the last
// token of its path would attend to if the path were computed as a chain.
#include <gmock/gmock.h>

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "common/engine/cuda/attention_plan.h"
#include "common/engine/cuda/step_plan.h"
#include "tests/unit/some_of.h"

namespace outrider::cuda {
namespace {

using ::testing::HasSubstr;

constexpr BlockId kPoolBlocks = 5000;
const std::vector<BlockId> kSpareOfPool = {kPoolBlocks};

AttentionShape Shape(int group, int block_size, bool slides = false) {
  const DecoderConfig spec = {.layers = 3,
                              .heads = 2 * group,
                              .kv_heads = 2,
                              .head_dim = 64,
                              .slides = std::vector<bool>(slides ? 3 : 0, slides)};
  const AttentionShape shape = AttentionShapeOf(spec, block_size);
  EXPECT_EQ(shape.slides, slides);
  return shape;
}

// Sequences of random lengths, with and without trees, in blocks in random order.
class TreeBatch {
 public:
  TreeBatch(const AttentionShape& shape, std::mt19937& random) : shape_(shape), random_(random) {}

  // Adds a sequence with `before` tokens before the tree, and `nodes` nodes, each a child of one of the
  // `reach` before it. Its rows begin at slot `position`.
  void Add(int before, int nodes, int reach, int position) {
    std::vector<int>& parents = parents_.emplace_back();
    for (int i = 0; i < nodes; ++i) {
      const int first = std::max(-1, i - reach);
      parents.push_back(first + static_cast<int>(random_() % static_cast<unsigned>(i - first)));
    }
    std::vector<BlockId>& blocks = blocks_.emplace_back();
    for (int s = 0; s < before + nodes; s += shape_.block_size)
      blocks.push_back(static_cast<BlockId>(random_() % kPoolBlocks));
    tokens_.emplace_back(static_cast<size_t>(before + nodes - position), 1);
    rows_.push_back({.tokens = tokens_.back(),
                     .position = position,
                     .blocks = blocks,
                     .logit_rows = 1,
                     .tree_begin = nodes > 0 ? before : 0,
                     .parents = parents});
  }
  void AddSome(int longest) {
    const int before = 1 + static_cast<int>(random_() % static_cast<unsigned>(longest));
    const int nodes = random_() % 3 == 0 ? 0 : 1 + static_cast<int>(random_() % 40);
    const int most_before = nodes == 0 ? 1 + static_cast<int>(random_() % 30) : 3;
    const int position =
        std::max(0, before + static_cast<int>(random_() % static_cast<unsigned>(nodes + 1)) -
                        static_cast<int>(random_() % static_cast<unsigned>(most_before)) - 1);
    Add(before, nodes, 1 + static_cast<int>(random_() % 8), position);
  }

  StepPlan plan() const { return PlanStep(rows_, shape_.block_size, kSpareOfPool); }

  // For each row of the step, the places of the keys that it attends to, in order of position, its own last.
  // A place is the number of heads of keys or values before it in the cache.
  std::vector<std::vector<int64_t>> Places() const {
    std::vector<std::vector<int64_t>> places;
    for (const SequenceRows& sequence : rows_) {
      for (size_t i = 0; i < sequence.tokens.size(); ++i) {
        std::vector<int64_t>& row = places.emplace_back();
        for (const int slot : Attended(sequence, sequence.position + static_cast<int>(i))) {
          const int64_t block = sequence.blocks[static_cast<size_t>(slot / shape_.block_size)];
          row.push_back(block * (shape_.block_stride / shape_.head_dim) + slot % shape_.block_size);
        }
      }
    }
    return places;
  }

 private:
  static std::vector<int> Attended(const SequenceRows& sequence, int slot) {
    const bool is_node = !sequence.parents.empty() && slot >= sequence.tree_begin;
    std::vector<int> slots(static_cast<size_t>(is_node ? sequence.tree_begin : slot + 1));
    std::iota(slots.begin(), slots.end(), 0);
    const auto path = static_cast<std::ptrdiff_t>(slots.size());
    for (int node = is_node ? slot - sequence.tree_begin : -1; node >= 0;
         node = sequence.parents[static_cast<size_t>(node)]) {
      slots.insert(slots.begin() + path, sequence.tree_begin + node);
    }
    return slots;
  }

  const AttentionShape shape_;
  std::mt19937& random_;
  std::deque<std::vector<int>> parents_;
  std::deque<std::vector<BlockId>> blocks_;
  std::deque<std::vector<TokenId>> tokens_;
  std::vector<SequenceRows> rows_;
};

// The part of one query that one thread block computes.
struct Piece {
  int row;
  std::vector<int64_t> places;  // of the keys, in order
  int distance;                 // from the first key to the row's position
};
using Pieces = std::map<std::pair<int, int>, Piece>;  // by partial result and query head of the group

// A written plan.
class TreePlan {
 public:
  TreePlan(const AttentionShape& shape, const AttentionSize& size, absl::Span<const AttentionSequence> batch)
      : shape_(shape), size_(size), layout_(size), data_(layout_.bytes / sizeof(int32_t), -7) {
    status = WritePlan(shape, size, batch, reinterpret_cast<char*>(data_.data())).status();
  }

  // Simulates both launches of FlashInfer's kernel. Fails the test where a result is written twice.
  Pieces Run() const {
    Pieces pieces;
    for (int item = 0; item < size_.items; ++item) RunItem(item, 0, shape_.block_size, block_heads(), pieces);
    for (int item = size_.items; item < size_.items + size_.tail_items; ++item)
      RunItem(item, layout_.tails, 1, 1, pieces);
    return pieces;
  }

  bool merges() const { return size_.partials > 0; }
  int first_partial(int row) const { return merges() ? At(layout_.row_partial, row) : row; }
  int splits(int row) const { return merges() ? At(layout_.row_splits, row) : 1; }

  absl::Status status;

 private:
  int At(size_t array, int index) const {
    return data_[array / sizeof(int32_t) + static_cast<size_t>(index)];
  }
  int64_t block_heads() const { return shape_.block_stride / shape_.head_dim; }

  void RunItem(int item, int first_sequence, int block_size, int64_t block_stride, Pieces& pieces) const {
    if (reinterpret_cast<const char*>(data_.data())[layout_.valid + static_cast<size_t>(item)] == 0) return;
    const int s = first_sequence + At(layout_.item_sequence, item), split = At(layout_.item_split, item);
    const int first_block = At(layout_.block_start, s);
    const int length =
        (At(layout_.block_start, s + 1) - first_block - 1) * block_size + At(layout_.last_length, s);
    const int first_row = At(layout_.query_start, s), rows = At(layout_.query_start, s + 1) - first_row;
    const int group = shape_.query_heads / shape_.kv_heads;
    const int begin = merges() ? split * kSplit : 0, end = merges() ? begin + kSplit : length;
    const int splits = (length + kSplit - 1) / kSplit;
    for (int i = 0; i < kQueryTile; ++i) {
      const int packed = At(layout_.item_tile, item) * kQueryTile + i, r = packed / group;
      if (r >= rows) continue;
      const int position = length - rows + r;
      Piece piece{.row = first_row + r, .places = {}, .distance = position - begin};
      for (int p = begin; p < std::min({end, length, position + 1}); ++p) {
        const int64_t block = At(layout_.blocks, first_block + p / block_size);
        piece.places.push_back(block * block_stride + p % block_size);
      }
      const int place = At(layout_.output_start, s) + (merges() ? r * splits + split : r);
      EXPECT_TRUE(pieces.emplace(std::pair(place, packed % group), std::move(piece)).second) << place;
    }
  }

  const AttentionShape shape_;
  const AttentionSize size_;
  const PlanLayout layout_;
  std::vector<int32_t> data_;
};

// Checks a launch with the step's rows from row `first` on, whose keys are in `places`.
void ExpectChains(const AttentionShape& shape, const AttentionSize& size,
                  absl::Span<const AttentionSequence> batch, int first,
                  const std::vector<std::vector<int64_t>>& places) {
  const TreePlan plan(shape, size, batch);
  ASSERT_TRUE(plan.status.ok()) << plan.status;
  const Pieces pieces = plan.Run();
  const int group = shape.query_heads / shape.kv_heads;
  size_t expected = 0;
  int rows = 0;
  for (const AttentionSequence& sequence : batch) rows += sequence.rows;
  for (int row = 0; row < rows; ++row) {
    const std::vector<int64_t>& keys = places[static_cast<size_t>(first + row)];
    const int count = static_cast<int>(keys.size());
    ASSERT_EQ(plan.splits(row), (count + kSplit - 1) / kSplit) << "row " << row;
    for (int split = 0; split < plan.splits(row); ++split) {
      const int begin = split * kSplit, end = std::min(begin + kSplit, count);
      for (int head = 0; head < group; ++head, ++expected) {
        const auto found = pieces.find({plan.first_partial(row) + split, head});
        ASSERT_NE(found, pieces.end()) << "row " << row << ", split " << split << ", head " << head;
        ASSERT_EQ(found->second.row, row);
        ASSERT_EQ(found->second.places, std::vector<int64_t>(keys.begin() + begin, keys.begin() + end))
            << "row " << row << ", split " << split;
        if (shape.slides) {
          ASSERT_EQ(found->second.distance, count - 1 - begin) << "row " << row;
        }
      }
    }
  }
  // Tiles also write results that no row reads, for rows before a split that others of the tile attend to.
  EXPECT_GE(pieces.size(), expected);
}

void ExpectChains(const TreeBatch& batch, const AttentionShape& shape, const AttentionSize& size) {
  ExpectChains(shape, size, batch.plan().first.sequences, 0, batch.Places());
}

TEST(TreePlan, ANodeAttendsToItsPathAsToAChain) {
  std::mt19937 random(1);
  for (int i = 0; i < SomeOf(120); ++i) {
    const AttentionShape shape =
        Shape(1 + static_cast<int>(random() % 20), 1 + static_cast<int>(random() % 20),
              /*slides=*/random() % 2 == 0);
    TreeBatch batch(shape, random);
    const unsigned sequences = 1 + random() % 5;
    const int longest = random() % 3 == 0 ? 200 : 900;
    for (unsigned s = 0; s < sequences; ++s) batch.AddSome(longest);
    SCOPED_TRACE(::testing::Message() << "batch " << i << ", blocks of " << shape.block_size);
    const AttentionSize size = SizeOf(shape, batch.plan().first.sequences);
    EXPECT_LE(size.blocks, LargestBlocks(shape, size));
    ExpectChains(batch, shape, size);
    // A launch with room for more, which merges partial results.
    AttentionSize larger = size;
    larger.sequences += 3;
    larger.rows += 9;
    larger.items += 5;
    larger.tail_items += 7;
    larger.blocks += 11;
    larger.partials += larger.rows;
    ExpectChains(batch, shape, larger);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(TreePlan, ANodesPositionIsItsDepthAndItsPlaceIsItsSlot) {
  std::mt19937 random(2);
  for (int i = 0; i < 100; ++i) {
    const AttentionShape shape = Shape(3, 1 + static_cast<int>(random() % 20));
    TreeBatch batch(shape, random);
    for (int s = 0; s < 3; ++s) batch.AddSome(100);
    const StepPlan plan = batch.plan();
    const std::vector<std::vector<int64_t>> places = batch.Places();
    ASSERT_EQ(plan.first.places.size(), places.size());
    for (size_t row = 0; row < places.size(); ++row) {
      const RowPlace& place = plan.first.places[row];
      ASSERT_EQ(place.position, static_cast<int>(places[row].size()) - 1);
      ASSERT_EQ(place.block * (shape.block_stride / shape.head_dim) + place.slot, places[row].back());
    }
  }
}

TEST(TreePlan, IsCutBetweenRowsWhereALaunchDoesNotHoldIt) {
  std::mt19937 random(3);
  for (int i = 0; i < 40; ++i) {
    const AttentionShape shape = Shape(4, 16, /*slides=*/i % 2 == 0);
    TreeBatch batch(shape, random);
    for (int s = 0; s < 4; ++s) batch.AddSome(900);
    const StepPlan plan = batch.plan();
    AttentionSize capacity = SizeOf(shape, plan.first.sequences);
    capacity.tail_items = std::max(2, capacity.tail_items / 3);
    capacity.partials = std::max(4, capacity.partials / 2);
    const auto passes = CutIntoPasses(shape, plan.first.sequences, capacity);
    ASSERT_TRUE(passes.ok()) << passes.status();
    EXPECT_GT(passes->size(), 1u);
    const std::vector<std::vector<int64_t>> places = batch.Places();
    for (const AttentionPass& pass : *passes) {
      ExpectChains(shape, capacity, pass.sequences, pass.first_row, places);
    }
    if (::testing::Test::HasFatalFailure()) return;
  }
}

// The trunk of the 64 nodes is read once for each tile of nodes, and not for each node.
TEST(TreePlan, NodesShareWhatLiesBeforeTheirTree) {
  std::mt19937 random(4);
  const AttentionShape shape = Shape(4, 16);
  TreeBatch batch(shape, random);
  batch.Add(/*before=*/10 * kSplit + 7, /*nodes=*/64, /*reach=*/8, /*position=*/10 * kSplit + 7);
  const AttentionSize size = SizeOf(shape, batch.plan().first.sequences);
  EXPECT_EQ(size.sequences, 1);
  EXPECT_EQ(size.items, 10 * 64 * 4 / kQueryTile);
  EXPECT_EQ(size.tail_items, 64);
}

TEST(TreePlan, HasAGraphThatHoldsIt) {
  std::mt19937 random(5);
  const AttentionShape shape = Shape(4, 16);
  const AttentionSize capacity = AttentionCapacity(shape, /*max_rows=*/512, /*max_positions=*/4096);
  for (int i = 0; i < 60; ++i) {
    TreeBatch batch(shape, random);
    for (int s = 0; s < 3; ++s) batch.AddSome(900);
    batch.Add(i, 5, 3, i);
    const StepPlan plan = batch.plan();
    const auto graph = GraphOf(plan, ShapeOf(plan), shape, capacity);
    ASSERT_TRUE(graph);
    EXPECT_GT(graph->first.tail_items, 0);
    ExpectChains(batch, shape, graph->first);
  }
}

// A graph of chains does not serve trees, and pays nothing for them.
TEST(TreePlan, StepsWithoutTreesLaunchNoTails) {
  std::mt19937 random(6);
  const AttentionShape shape = Shape(4, 16);
  const AttentionSize capacity = AttentionCapacity(shape, /*max_rows=*/512, /*max_positions=*/4096);
  TreeBatch chains(shape, random), trees(shape, random);
  chains.Add(305, 0, 1, 300);
  trees.Add(300, 5, 5, 300);
  const StepPlan of_chains = chains.plan(), of_trees = trees.plan();
  const auto graph = GraphOf(of_chains, ShapeOf(of_chains), shape, capacity);
  ASSERT_TRUE(graph);
  EXPECT_EQ(graph->first.tail_items, 0);
  EXPECT_FALSE(graph->first.Holds(SizeOf(shape, of_trees.first.sequences)));
}

TEST(AttentionCapacity, HoldsTheTailsOfAGraphsRows) {
  std::mt19937 random(7);
  for (const bool slides : {false, true}) {
    const AttentionShape shape = Shape(20, 16, slides);
    const AttentionSize capacity = AttentionCapacity(shape, /*max_rows=*/512, /*max_positions=*/8192);
    TreeBatch batch(shape, random);
    for (int s = 0; s < 4; ++s) batch.Add(4 * kSplit - 1, 64, 1, 4 * kSplit - 1);
    EXPECT_TRUE(capacity.Holds(SizeOf(shape, batch.plan().first.sequences)));
  }
}

TEST(AttentionCapacity, EverySlotOfAPoolHasANumber) {
  const AttentionShape shape = Shape(4, 16);
  const int64_t heads = shape.block_stride / shape.head_dim;
  EXPECT_LE((MostBlocks(shape) + 1) * heads, int64_t{1} << 31);
  EXPECT_GT((MostBlocks(shape) + 2) * heads, int64_t{1} << 31);
}

TEST(TreePlan, RefusesWhatIsNotATree) {
  const AttentionShape shape = Shape(4, 16);
  const std::vector<BlockId> blocks = {1, 2};
  const auto message = [&](const AttentionSequence& sequence) {
    const absl::Status status = CutIntoPasses(shape, {&sequence, 1}, AttentionSize{}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  const std::vector<int> two = {-1, 0}, later = {-1, 2, 0}, itself = {0}, below = {-2};
  EXPECT_THAT(message({3, 20, blocks, 18, two}), HasSubstr("3 rows of a tree of 2 nodes"));
  EXPECT_THAT(message({1, 20, blocks, 17, two}), HasSubstr("2 nodes from slot 17 to 20"));
  EXPECT_THAT(message({1, 20, blocks, 17, later}), HasSubstr("node 1 follows node 2"));
  EXPECT_THAT(message({1, 20, blocks, 19, itself}), HasSubstr("node 0 follows node 0"));
  EXPECT_THAT(message({1, 20, blocks, 19, below}), HasSubstr("node 0 follows node -2"));
}

}  // namespace
}  // namespace outrider::cuda
