// The kernels of layer_kernels.h, and the one that merges attention, from their source on host threads.
#include <barrier>
#include <thread>

#include "layer_testing.h"

namespace outrider::testing {
namespace {

constexpr int kThreads = 64;  // fewer than a block on the device has, to save time: two warps
constexpr int kWarp = 32;

// One thread of a team on the host, which combines as a thread block does.
class HostRowTeam {
 public:
  HostRowTeam(int rank, int size, float* values, std::barrier<>* barrier)
      : rank_(rank), size_(size), values_(values), barrier_(barrier) {}

  int rank() const { return rank_; }
  int size() const { return size_; }
  float Sum(float value) const {
    return Reduce(value, [](float a, float b) { return a + b; });
  }
  float Max(float value) const {
    return Reduce(value, [](float a, float b) { return std::max(a, b); });
  }

 private:
  template <class Combine>
  float Reduce(float value, const Combine& combine) const {
    values_[rank_] = value;
    barrier_->arrive_and_wait();
    float result = 0;
    for (int first = 0; first < size_; first += kWarp) {
      float warp[kWarp];
      std::copy_n(values_ + first, kWarp, warp);
      for (int distance = kWarp / 2; distance > 0; distance /= 2) {
        for (int i = 0; i < distance; ++i) warp[i] = combine(warp[i], warp[i + distance]);
      }
      result = first == 0 ? warp[0] : combine(result, warp[0]);
    }
    barrier_->arrive_and_wait();
    return result;
  }

  const int rank_, size_;
  float* const values_;
  std::barrier<>* const barrier_;
};

// Calls work(team) from every thread of a team.
template <class Work>
void OnRowTeam(int size, const Work& work) {
  std::vector<float> values(static_cast<size_t>(size));
  std::barrier<> barrier(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] { work(HostRowTeam(rank, size, values.data(), &barrier)); });
  }
  for (std::thread& thread : threads) thread.join();
}

// The host as a `Machine` of layer_testing.h.
class Host {
 public:
  template <class T>
  class Array {
   public:
    explicit Array(std::vector<T> values) : values_(std::move(values)) {}
    T* data() { return values_.data(); }
    std::vector<T> Read() const { return values_; }

   private:
    std::vector<T> values_;
  };
  template <class T>
  Array<T> Copy(std::vector<T> values) const {
    return Array<T>(std::move(values));
  }

  void Embed(const int32_t* tokens, const uint16_t* table, float* hidden, int rows, int columns) const {
    ForRows(rows, [=](const HostRowTeam& team, int row) {
      cuda::EmbedRow(team, row, tokens, table, hidden, columns);
    });
  }
  void AddNorm(const cuda::Product& product, float* hidden, const float* weight, float epsilon,
               const cuda::OperandRows& out, int rows, int columns) const {
    Floats values(static_cast<size_t>(columns));
    ForRows(rows, [&](const HostRowTeam& team, int row) {
      cuda::AddNormRow(team, row, nullptr, product, hidden, hidden, weight, epsilon, out, columns,
                       values.data());
    });
  }
  void AddNormOf(const int32_t* indices, const cuda::Product& product, const float* hidden,
                 const float* weight, float epsilon, const cuda::OperandRows& out, int rows,
                 int columns) const {
    Floats values(static_cast<size_t>(columns));
    ForRows(rows, [&](const HostRowTeam& team, int row) {
      cuda::AddNormRow(team, row, indices, product, hidden, nullptr, weight, epsilon, out, columns,
                       values.data());
    });
  }
  void RotateAndStore(const cuda::Product& qkv, const cuda::HeadFinish& finish, const cuda::RowPlace* places,
                      const float* cosines, const float* sines, const cuda::HeadShape& shape,
                      uint16_t* queries, const cuda::KvLayerView& kv, int rows) const {
    OnRowTeam(shape.head_dim / 2, [&](const HostRowTeam& team) {
      for (int row = 0; row < rows; ++row) {
        for (int head = 0; head < shape.heads + 2 * shape.kv_heads; ++head) {
          cuda::RotateAndStoreHead(team, row, head, qkv, finish, places, cosines, sines, shape, queries, kv);
        }
      }
    });
  }
  void Quantize(const uint16_t* x, const cuda::OperandRows& out, int rows, int columns) const {
    ForRows(rows, [&](const HostRowTeam& team, int row) { cuda::QuantizeRow(team, row, x, out, columns); });
  }
  void SiluMul(const cuda::Product& gate_up, const cuda::OperandRows& out, int rows, int columns) const {
    ForRows(rows, [&](const HostRowTeam& team, int row) {
      if (out.row_scales == nullptr) {
        cuda::SiluMulBFloat16Row(team, row, gate_up, out, columns);
      } else {
        cuda::SiluMulRow(team, row, gate_up, out, columns);
      }
    });
  }
  void Scale(const cuda::Product& product, float* y, int rows, int columns) const {
    ForRows(rows, [&](const HostRowTeam& team, int row) { cuda::ScaleRow(team, row, product, y, columns); });
  }
  void Merge(const uint16_t* partials, const float* sums, const int32_t* row_partial,
             const int32_t* row_splits, int heads, int head_dim, int rows, uint16_t* out) const {
    for (int row = 0; row < rows; ++row) {
      for (int column = 0; column < heads * head_dim; column += cuda::kMergeElements) {
        cuda::MergePartials(partials, sums, row_partial, row_splits, heads, head_dim, row, column, out);
      }
    }
  }

 private:
  template <class Work>
  static void ForRows(int rows, const Work& work) {
    OnRowTeam(kThreads, [&](const HostRowTeam& team) {
      for (int row = 0; row < rows; ++row) work(team, row);
    });
  }
};

Host host;

TEST(LayerRows, EmbeddingsAreThoseOfTheTokens) { ExpectEmbedding(host); }

TEST(LayerRows, ANormFollowsTheSum) {
  for (const bool fp8 : {false, true}) {
    ExpectNorm(host, fp8, /*with_product=*/true, {});
    ExpectNorm(host, fp8, /*with_product=*/true, {4, 0, 3});
  }
  ExpectNorm(host, /*fp8=*/false, /*with_product=*/false, {});
}

TEST(LayerRows, HeadsAreRotatedAndStored) {
  for (const int head_dim : {64, 128}) {
    ExpectRotation(host, head_dim, /*fp8=*/false, /*bias=*/false, /*norms=*/false);
    ExpectRotation(host, head_dim, /*fp8=*/true, /*bias=*/true, /*norms=*/true);
  }
}

TEST(LayerRows, QuantisedRowsHaveTheirOwnScale) { ExpectQuantization(host); }

TEST(LayerRows, TheGateIsMultiplied) {
  ExpectSiluMul(host, /*fp8=*/false);
  ExpectSiluMul(host, /*fp8=*/true);
}

TEST(LayerRows, LogitsAreScaled) { ExpectScaledLogits(host); }

TEST(LayerRows, PartialResultsAreMerged) { ExpectMergedPartials(host); }

// A number half-way between two neighbours rounds to the even one, and any other to the nearer one.
template <class Narrow, class To, class From>
void ExpectNearest(int largest, const To& to, const From& from) {
  for (int i = 0; i < largest; ++i) {
    const Narrow below = static_cast<Narrow>(i), above = static_cast<Narrow>(i + 1);
    const float middle = static_cast<float>((double{from(below)} + from(above)) / 2);
    ASSERT_EQ(to(from(below)), below);
    ASSERT_EQ(to(std::nextafter(middle, 0.0f)), below) << middle;
    ASSERT_EQ(to(middle), i % 2 == 0 ? below : above) << middle;
    ASSERT_EQ(to(std::nextafter(middle, HUGE_VALF)), above) << middle;
    const Narrow sign = static_cast<Narrow>(1 << (8 * sizeof(Narrow) - 1));
    ASSERT_EQ(to(-middle), to(middle) | sign) << middle;
  }
}

TEST(NarrowFloats, BFloat16IsTheNearest) {
  ExpectNearest<uint16_t>(0x7f7f, ToBFloat16, FromBFloat16);
  EXPECT_EQ(ToBFloat16(3.4e38f), 0x7f80);
  EXPECT_EQ(ToBFloat16(-HUGE_VALF), 0xff80);
  EXPECT_EQ(ToBFloat16(std::nanf("")), 0x7fff);
}

TEST(NarrowFloats, Float8IsTheNearestAndEndsAtTheLargest) {
  ExpectNearest<uint8_t>(0x7e, ToFloat8, FromFloat8);
  for (const float large : {448.0f, 449.0f, 465.0f, 480.0f, 1e9f, HUGE_VALF}) {
    EXPECT_EQ(ToFloat8(large), 0x7e);
    EXPECT_EQ(ToFloat8(-large), 0xfe);
  }
  EXPECT_EQ(ToFloat8(-0.0f), 0x80);
  EXPECT_EQ(ToFloat8(-std::nanf("")), 0x7f);
}

}  // namespace
}  // namespace outrider::testing
