// Attention over the paged cache against the formula in double precision. A row has the same bits whatever
// other rows are in its batch.
#include "common/engine/cuda/attention.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <utility>

#include "common/engine/decoder/narrow_floats.h"
#include "gpu_testing.h"
#include "tests/unit/device_tree_testing.h"
#include "tests/unit/layer_testing.h"

namespace outrider::testing {
namespace {

using cuda::Attention;
using cuda::AttentionSequence;
using cuda::AttentionShape;
using cuda::AttentionSize;

// A sequence with queries in its last `rows` slots. Of two with equal seeds, the shorter is a prefix.
struct Text {
  int rows;
  int length;
  uint64_t seed;
  // The tree at its end, if any, as in AttentionSequence.
  int tree_begin = 0;
  std::vector<int> parents = {};
  // If the chain is a path of the text with this seed: the slots of the path there, in order.
  std::vector<int> path = {};

  // The slots that the row attends to, in order.
  std::vector<int> SlotsOf(int row) const {
    const int slot = length - rows + row;
    std::vector<int> slots;
    if (parents.empty()) {
      for (int s = 0; s <= slot; ++s) slots.push_back(s);
      return slots;
    }
    for (int node = slot - tree_begin; node >= 0; node = parents[static_cast<size_t>(node)])
      slots.insert(slots.begin(), tree_begin + node);
    for (int s = tree_begin - 1; s >= 0; --s) slots.insert(slots.begin(), s);
    return slots;
  }
};

Text Tree(int rows, int tree_begin, int reach, int nodes, uint64_t seed) {
  return {rows, tree_begin + nodes, seed, tree_begin, SomeParents(nodes, reach, static_cast<uint32_t>(seed))};
}

// A node's path as a chain.
Text PathOf(const Text& tree, int row) {
  std::vector<int> path = tree.SlotsOf(row);
  return {.rows = 1, .length = static_cast<int>(path.size()), .seed = tree.seed, .path = std::move(path)};
}

int Width(const AttentionShape& shape) { return shape.query_heads * shape.head_dim; }
int KvWidth(const AttentionShape& shape) { return shape.kv_heads * shape.head_dim; }

// Made-up values, [length, width]. A path has the values of its slots.
Halves MadeUpSlots(const Text& text, uint64_t part, int width) {
  const int slots = text.path.empty() ? text.length : text.path.back() + 1;
  const Halves all = MadeUp(3 * text.seed + part).NormalHalves(slots * width);
  if (text.path.empty()) return all;
  Halves found;
  for (const int slot : text.path)
    found.insert(found.end(), all.begin() + int64_t{slot} * width, all.begin() + int64_t{slot + 1} * width);
  return found;
}

// [length, heads * head_dim] each.
struct Tensors {
  Tensors(const AttentionShape& shape, const Text& text)
      : queries(MadeUpSlots(text, 0, Width(shape))),
        keys(MadeUpSlots(text, 1, KvWidth(shape))),
        values(MadeUpSlots(text, 2, KvWidth(shape))) {}
  Halves queries, keys, values;
};

// A batch with its cache on the GPU. The blocks of a sequence are shuffled, and hold numbers beyond its end
// too.
class Batch {
 public:
  Batch(const AttentionShape& shape, const std::vector<Text>& texts) : shape_(shape), texts_(texts) {
    for (const Text& text : texts_) {
      tensors_.emplace_back(shape, text);
      rows_ += text.rows;
      blocks_ += (text.length + shape.block_size - 1) / shape.block_size;
    }
    std::vector<BlockId> ids(static_cast<size_t>(blocks_));
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(1));
    for (const Text& text : texts_) {
      const auto end = ids.end(), begin = end - (text.length + shape.block_size - 1) / shape.block_size;
      tables_.emplace_back(begin, end);
      ids.erase(begin, end);
    }
    for (size_t s = 0; s < texts_.size(); ++s) {
      sequences_.push_back({.rows = texts_[s].rows,
                            .length = texts_[s].length,
                            .blocks = tables_[s],
                            .tree_begin = texts_[s].tree_begin,
                            .parents = texts_[s].parents});
    }
  }

  Batch(Batch&&) = default;  // and no copy: `sequences_` refers to `tables_`

  AttentionSize size() const { return SizeOf(shape_, sequences_); }

  absl::StatusOr<size_t> AddTo(Attention& attention, const AttentionSize& size) const {
    return attention.Add(size, sequences_);
  }

  // The output with the second of two plans, [rows, query_heads * head_dim].
  Halves Attend(const AttentionSize& size, int window) const {
    const int64_t query_stride = Width(shape_) + 64;
    const DeviceArray<uint16_t> cache(Cache()), queries(Queries(query_stride));
    const DeviceArray<uint16_t> out(static_cast<size_t>(size.rows * Width(shape_)));
    const std::unique_ptr<Attention> attention = Attention::Create(shape_, size, /*plans=*/2).value();
    EXPECT_EQ(AddTo(*attention, size).value(), 0u);
    const size_t plan = AddTo(*attention, size).value();
    EXPECT_EQ(plan, Attention::PlanBytes(size));
    absl::Status status = attention->Upload(kDefaultStream);
    EXPECT_TRUE(status.ok()) << status;
    status = attention->Launch(plan, size,
                               {.queries = queries.data(),
                                .query_stride = query_stride,
                                .cache = cache.data(),
                                .out = out.data(),
                                .window = window},
                               kDefaultStream);
    EXPECT_TRUE(status.ok()) << status;
    return out.Read(static_cast<size_t>(rows_ * Width(shape_)));
  }

  // Compares some rows of each sequence, the first and the last among them.
  void ExpectRight(const Halves& out, int window) const {
    int first_row = 0;
    for (size_t s = 0; s < texts_.size(); ++s) {
      const int rows = texts_[s].rows;
      for (int r = 0; r < rows; r = r == rows - 1 ? rows : std::min(r + 37, rows - 1)) {
        for (int head = 0; head < shape_.query_heads; ++head) {
          const size_t at = static_cast<size_t>((first_row + r) * Width(shape_) + head * shape_.head_dim);
          ExpectRow(out.data() + at, static_cast<int>(s), texts_[s].SlotsOf(r), head, window);
        }
      }
      first_row += rows;
    }
  }

 private:
  int64_t Part() const { return int64_t{KvWidth(shape_)} * shape_.block_size; }

  Halves Cache() const {
    const int64_t stride = shape_.block_stride;
    Halves cache(static_cast<size_t>(blocks_ * stride), ToBFloat16(7));
    for (size_t s = 0; s < texts_.size(); ++s) {
      for (int p = 0; p < texts_[s].length; ++p) {
        const int64_t block = tables_[s][static_cast<size_t>(p / shape_.block_size)] * stride;
        for (int i = 0; i < KvWidth(shape_); ++i) {
          const int head = i / shape_.head_dim, slot = p % shape_.block_size;
          const int64_t to =
              block + (int64_t{head} * shape_.block_size + slot) * shape_.head_dim + i % shape_.head_dim;
          const size_t from = static_cast<size_t>(p * KvWidth(shape_) + i);
          cache[static_cast<size_t>(to)] = tensors_[s].keys[from];
          cache[static_cast<size_t>(to + Part())] = tensors_[s].values[from];
        }
      }
    }
    return cache;
  }

  Halves Queries(int64_t stride) const {
    Halves queries(static_cast<size_t>(rows_ * stride));
    int64_t row = 0;
    for (size_t s = 0; s < texts_.size(); ++s) {
      for (int p = texts_[s].length - texts_[s].rows; p < texts_[s].length; ++p, ++row) {
        std::copy_n(tensors_[s].queries.begin() + int64_t{p} * Width(shape_), Width(shape_),
                    queries.begin() + row * stride);
      }
    }
    return queries;
  }

  // The root mean square error of a head is that of bfloat16. Leaving out one position of a thousand would
  // cause several times that.
  void ExpectRow(const uint16_t* found, int s, const std::vector<int>& slots, int head, int window) const {
    const Tensors& tensors = tensors_[static_cast<size_t>(s)];
    const int dim = shape_.head_dim, kv_head = head / (shape_.query_heads / shape_.kv_heads);
    const size_t begin = window > 0 ? slots.size() - std::min(slots.size(), static_cast<size_t>(window)) : 0;
    const uint16_t* const query =
        &tensors.queries[static_cast<size_t>(slots.back() * Width(shape_) + head * dim)];
    std::vector<double> expected(static_cast<size_t>(dim));
    double total = 0;
    for (size_t p = begin; p < slots.size(); ++p) {
      const size_t at = static_cast<size_t>(slots[p] * KvWidth(shape_) + kv_head * dim);
      double score = 0;
      for (int d = 0; d < dim; ++d) {
        score += double{FromBFloat16(query[d])} * FromBFloat16(tensors.keys[at + static_cast<size_t>(d)]);
      }
      const double weight = std::exp(score / std::sqrt(dim));
      total += weight;
      for (int d = 0; d < dim; ++d) {
        expected[static_cast<size_t>(d)] +=
            weight * FromBFloat16(tensors.values[at + static_cast<size_t>(d)]);
      }
    }
    double squares = 0, errors = 0;
    for (int d = 0; d < dim; ++d) {
      const double value = expected[static_cast<size_t>(d)] / total, error = FromBFloat16(found[d]) - value;
      squares += value * value;
      errors += error * error;
    }
    EXPECT_LE(std::sqrt(errors / squares), 0x1p-7)
        << "sequence " << s << ", slot " << slots.back() << ", head " << head << ", window " << window;
  }

  const AttentionShape shape_;
  const std::vector<Text> texts_;
  std::vector<Tensors> tensors_;
  std::vector<std::vector<BlockId>> tables_;
  std::vector<AttentionSequence> sequences_;
  int rows_ = 0, blocks_ = 0;
};

// A block has other layers' keys and values too.
AttentionShape Shape(int query_heads, int kv_heads, int head_dim, int block_size) {
  return {.query_heads = query_heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .block_size = block_size,
          .block_stride = int64_t{2} * kv_heads * block_size * head_dim + head_dim};
}

std::vector<AttentionShape> Shapes() {
  std::vector<AttentionShape> shapes = {Shape(6, 2, 128, 32), Shape(8, 2, 64, 8)};
  for (const int head_dim : {64, 128}) {
    for (const int group : {1, 3, 4, 8}) shapes.push_back(Shape(2 * group, 2, head_dim, 16));
  }
  return shapes;
}

// Without a window, with one that is shorter than a split, and with one that is longer.
constexpr int kWindows[] = {0, 100, 300};

TEST(Attention, OfLongSequencesIsMerged) {
  const std::vector<Text> texts = {{1, 1, 1},    {1, 255, 2},   {1, 256, 3},   {1, 257, 4},
                                   {1, 1000, 5}, {300, 300, 6}, {40, 1000, 7}, {5, 257, 8}};
  for (const AttentionShape& shape : Shapes()) {
    const Batch batch(shape, texts);
    ASSERT_GT(batch.size().partials, 0);
    for (const int window : kWindows) batch.ExpectRight(batch.Attend(batch.size(), window), window);
  }
}

TEST(Attention, OfShortSequencesIsTheSameMergedAndUnmerged) {
  const std::vector<Text> texts = {{1, 1, 1},     {1, 255, 2}, {1, 256, 3},
                                   {200, 256, 4}, {33, 33, 5}, {6, 17, 6}};
  for (const AttentionShape& shape : Shapes()) {
    const Batch batch(shape, texts);
    ASSERT_EQ(batch.size().partials, 0);
    const AttentionSize merges = LargestSize(shape, 16, 300, 1024);
    ASSERT_GT(merges.partials, 0);
    for (const int window : kWindows) {
      const Halves out = batch.Attend(batch.size(), window);
      batch.ExpectRight(out, window);
      EXPECT_EQ(batch.Attend(merges, window), out);
    }
  }
}

TEST(Attention, HasRoomForAsManyPlansAsItWasMadeFor) {
  const AttentionShape shape = Shape(8, 2, 64, 16);
  const Batch batch(shape, {{1, 300, 1}});
  const AttentionSize size = batch.size();
  const std::unique_ptr<Attention> attention = Attention::Create(shape, size, /*plans=*/2).value();
  for (int step = 0; step < 2; ++step) {
    EXPECT_TRUE(batch.AddTo(*attention, size).ok());
    EXPECT_TRUE(attention->HasRoom(Attention::PlanBytes(size)));
    EXPECT_TRUE(batch.AddTo(*attention, size).ok());
    EXPECT_FALSE(attention->HasRoom(Attention::PlanBytes(size)));
    EXPECT_EQ(batch.AddTo(*attention, size).status().code(), absl::StatusCode::kResourceExhausted);
    attention->Clear();
  }
}

// The row at `position` of sequence 5: alone, as one of many rows, and beside others.
TEST(Attention, ARowHasTheSameBitsInAnyCompany) {
  for (const AttentionShape& shape :
       {Shape(2, 2, 64, 16), Shape(8, 2, 64, 16), Shape(6, 2, 128, 16), Shape(16, 2, 128, 32)}) {
    for (const int position : {0, 15, 255, 256, 700}) {
      const Text alone = {1, position + 1, 5};
      const Batch batch(shape, {alone});
      const std::pair<Batch, int> others[] = {
          {Batch(shape, {{position + 1, position + 1, 5}}), position},
          {Batch(shape, {{position + 9, position + 9, 5}}), position},
          {Batch(shape, {{1, 800, 1}, alone}), 1},
          {Batch(shape, {{300, 300, 1}, {3, position + 3, 5}, {1, 20, 2}}), 300}};
      for (const int window : kWindows) {
        const Halves expected = batch.Attend(batch.size(), window);
        EXPECT_EQ(batch.Attend(LargestSize(shape, 8, 64, 2048), window), expected);
        for (const auto& [other, row] : others) {
          const Halves out = other.Attend(other.size(), window);
          EXPECT_TRUE(std::equal(expected.begin(), expected.end(), out.begin() + int64_t{row} * Width(shape)))
              << "position " << position << " as row " << row << ", window " << window << ", "
              << shape.query_heads << " heads of " << shape.head_dim;
        }
      }
    }
  }
}

// Trees that begin in the first split, at its end and after it, one whose paths span a split, and one of
// which only the last nodes have queries, as when a draft computes a level.
std::vector<Text> Trees() {
  return {Tree(3, 0, 2, 3, 1),       Tree(24, 5, 24, 24, 2),  Tree(16, 250, 2, 16, 3), Tree(5, 256, 3, 20, 4),
          Tree(300, 200, 1, 300, 5), Tree(20, 700, 4, 20, 6), Tree(4, 255, 1, 4, 7)};
}

// A window is measured from a node's own position.
AttentionShape SlidingIf(AttentionShape shape, int window) {
  shape.slides = window > 0;
  return shape;
}

TEST(Attention, OfTreesIsThatOfTheirPaths) {
  std::vector<Text> texts = Trees();
  texts.insert(texts.begin() + 2, {Text{7, 300, 20}, Text{1, 9, 21}});
  texts.push_back({33, 33, 22});
  for (const AttentionShape& shape :
       {Shape(6, 2, 128, 32), Shape(8, 2, 64, 8), Shape(2, 2, 64, 16), Shape(16, 2, 128, 16)}) {
    for (const int window : kWindows) {
      const Batch batch(SlidingIf(shape, window), texts);
      ASSERT_GT(batch.size().tail_items, 0);
      batch.ExpectRight(batch.Attend(batch.size(), window), window);
    }
  }
}

// Compares some nodes of texts[tree] with their paths, which share a batch of their own.
void ExpectChains(const AttentionShape& shape, const std::vector<Text>& texts, size_t tree, int window) {
  const int every = std::max(1, texts[tree].rows / 7);
  std::vector<Text> paths;
  for (int r = 0; r < texts[tree].rows; r += every) paths.push_back(PathOf(texts[tree], r));
  const Batch chains(shape, paths), batch(SlidingIf(shape, window), texts);
  const Halves expected = chains.Attend(chains.size(), window), out = batch.Attend(batch.size(), window);
  int64_t row = 0;
  for (size_t s = 0; s < tree; ++s) row += texts[s].rows;
  for (auto path = expected.begin(); path != expected.end(); path += Width(shape), row += every) {
    EXPECT_TRUE(std::equal(path, path + Width(shape), out.begin() + row * Width(shape)))
        << "row " << row << ", tree after " << texts[tree].tree_begin << ", window " << window << ", "
        << shape.query_heads << " heads of " << shape.head_dim;
  }
}

TEST(Attention, ANodeHasTheBitsOfItsPathAsAChain) {
  for (const AttentionShape& shape : {Shape(8, 2, 64, 16), Shape(6, 2, 128, 4)}) {
    for (const Text& tree : Trees()) {
      ExpectChains(shape, {tree}, 0, /*window=*/0);
      for (const int window : kWindows) {
        ExpectChains(shape, {Text{9, 700, 20}, tree, Text{5, 5, 21}}, 1, window);
      }
    }
  }
}

}  // namespace
}  // namespace outrider::testing
