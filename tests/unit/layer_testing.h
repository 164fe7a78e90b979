// Checks a layer's kernels against double precision, on made-up cases. `Machine` is where the kernels run:
// threads of the host (layer_rows_test.cc), or a GPU. It has
//   Copy(std::vector<T>)   an array with data(), where the kernels find it, and Read(), its values
//   Embed, AddNorm, ...    the functions of layer_kernels.h without a stream, bfloat16 as its bits
//   Merge                  MergePartials over all rows and columns; on the host only
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "common/engine/cuda/layer_rows.h"
#include "common/engine/decoder/narrow_floats.h"

namespace outrider::testing {

using Floats = std::vector<float>;
using Halves = std::vector<uint16_t>;  // bfloat16

class MadeUp {
 public:
  explicit MadeUp(uint64_t seed) : random_(seed) {}

  int Below(int end) { return static_cast<int>(random_() % static_cast<uint64_t>(end)); }
  Floats Normal(int count, float spread = 1) {
    Floats values(static_cast<size_t>(count));
    std::normal_distribution<float> normal(0, spread);
    for (float& value : values) value = normal(random_);
    return values;
  }
  Floats Positive(int count) {
    Floats values = Normal(count);
    for (float& value : values) value = 0.1f + std::abs(value);
    return values;
  }
  Halves NormalHalves(int count) {
    Halves values;
    for (const float value : Normal(count)) values.push_back(ToBFloat16(value));
    return values;
  }

 private:
  std::mt19937_64 random_;
};

// A product as the kernels get it, and its values.
template <class Machine>
class TestProduct {
 public:
  TestProduct(Machine& machine, MadeUp& made_up, int rows, int columns, bool fp8)
      : columns_(columns), y_(made_up.Normal(rows * columns)), on_machine_(machine.Copy(y_)) {
    if (!fp8) return;
    row_scales_ = made_up.Positive(rows);
    column_scales_ = made_up.Positive(columns);
    row_scales_on_machine_ = machine.Copy(row_scales_);
    column_scales_on_machine_ = machine.Copy(column_scales_);
  }

  cuda::Product product() {
    return {on_machine_.data(), row_scales_.empty() ? nullptr : row_scales_on_machine_->data(),
            row_scales_.empty() ? nullptr : column_scales_on_machine_->data()};
  }
  float* y() { return on_machine_.data(); }
  Floats Read() { return on_machine_.Read(); }
  double operator()(int row, int column) const {
    const double y = y_[static_cast<size_t>(row * columns_ + column)];
    if (row_scales_.empty()) return y;
    return y * row_scales_[static_cast<size_t>(row)] * column_scales_[static_cast<size_t>(column)];
  }

 private:
  template <class T>
  using Array = decltype(std::declval<Machine>().Copy(std::vector<T>()));

  const int columns_;
  const Floats y_;
  Floats row_scales_, column_scales_;
  Array<float> on_machine_;
  std::optional<Array<float>> row_scales_on_machine_, column_scales_on_machine_;
};

// The memory for an operand that kernels write, and a check of what they wrote.
template <class Machine>
class TestOperand {
 public:
  TestOperand(Machine& machine, int rows, int columns, bool fp8)
      : rows_(rows),
        columns_(columns),
        fp8_(fp8),
        halves_(machine.Copy(Halves(static_cast<size_t>(rows * columns), 0x7fff))),
        bytes_(machine.Copy(std::vector<uint8_t>(static_cast<size_t>(rows * columns), 0x7f))),
        scales_(machine.Copy(Floats(static_cast<size_t>(rows), -1))) {}

  cuda::OperandRows operand() {
    if (fp8_) return {bytes_.data(), scales_.data()};
    return {halves_.data(), nullptr};
  }

  // Compares with expected(row, column) in double. Each element may be off by half a unit of its last place,
  // and by what rounding in float32 adds.
  template <class Expected>
  void Expect(const Expected& expected) {
    const Halves halves = halves_.Read();
    const std::vector<uint8_t> bytes = bytes_.Read();
    const Floats scales = scales_.Read();
    for (int r = 0; r < rows_; ++r) {
      double largest = 0;
      for (int c = 0; c < columns_; ++c) largest = std::max(largest, std::abs(double{expected(r, c)}));
      const float scale = scales[static_cast<size_t>(r)];
      if (fp8_) {
        ASSERT_NEAR(scale, largest > 0 ? largest / 448 : 1, 1e-5 * scale) << "row " << r;
      }
      for (int c = 0; c < columns_; ++c) {
        const size_t i = static_cast<size_t>(r * columns_ + c);
        const double value = expected(r, c);
        const double found = fp8_ ? double{FromFloat8(bytes[i])} * scale : FromBFloat16(halves[i]);
        const double unit =
            fp8_ ? std::max(std::abs(value) * 0x1p-4, scale * 0x1p-10) : std::abs(value) * 0x1p-8;
        ASSERT_NEAR(found, value, 1.01 * unit) << "row " << r << ", column " << c;
      }
    }
  }

 private:
  template <class T>
  using Array = decltype(std::declval<Machine>().Copy(std::vector<T>()));

  const int rows_, columns_;
  const bool fp8_;
  Array<uint16_t> halves_;
  Array<uint8_t> bytes_;
  Array<float> scales_;
};

// Narrower and wider than the team, and no multiple of it.
inline constexpr int kColumns[] = {16, 944, 3072};

template <class Machine>
void ExpectEmbedding(Machine& machine) {
  constexpr int kVocab = 11;
  for (const int columns : kColumns) {
    MadeUp made_up(1);
    const std::vector<int32_t> tokens = {3, 10, 0, 3};
    const Halves table = made_up.NormalHalves(kVocab * columns);
    auto hidden = machine.Copy(Floats(tokens.size() * static_cast<size_t>(columns)));
    machine.Embed(machine.Copy(tokens).data(), machine.Copy(table).data(), hidden.data(), 4, columns);
    const Floats found = hidden.Read();
    for (int r = 0; r < 4; ++r) {
      for (int c = 0; c < columns; ++c) {
        const size_t from = static_cast<size_t>(tokens[static_cast<size_t>(r)] * columns + c);
        ASSERT_EQ(found[static_cast<size_t>(r * columns + c)], FromBFloat16(table[from])) << r << ", " << c;
      }
    }
  }
}

// `indices`: the rows that are wanted, in which case hidden stays as it is; empty: all rows.
template <class Machine>
void ExpectNorm(Machine& machine, bool fp8, bool with_product, const std::vector<int32_t>& indices) {
  constexpr int kRows = 5;
  constexpr float kEpsilon = 1e-2f;  // so large that its absence shows
  for (const int columns : kColumns) {
    MadeUp made_up(2);
    TestProduct<Machine> product(machine, made_up, kRows, columns, fp8);
    const Floats before = made_up.Normal(kRows * columns, 0.3f), weight = made_up.Normal(columns);
    auto hidden = machine.Copy(before);
    auto weight_on_machine = machine.Copy(weight);
    const int rows = indices.empty() ? kRows : static_cast<int>(indices.size());
    TestOperand<Machine> out(machine, rows, columns, fp8);
    const cuda::Product added = with_product ? product.product() : cuda::Product();
    if (indices.empty()) {
      machine.AddNorm(added, hidden.data(), weight_on_machine.data(), kEpsilon, out.operand(), rows, columns);
    } else {
      machine.AddNormOf(machine.Copy(indices).data(), added, hidden.data(), weight_on_machine.data(),
                        kEpsilon, out.operand(), rows, columns);
    }
    const auto sum = [&](int row, int c) {
      const double value = before[static_cast<size_t>(row * columns + c)];
      return with_product ? value + product(row, c) : value;
    };
    const Floats after = hidden.Read();
    for (int i = 0; i < kRows * columns; ++i) {
      const double expected =
          indices.empty() ? sum(i / columns, i % columns) : before[static_cast<size_t>(i)];
      ASSERT_NEAR(after[static_cast<size_t>(i)], expected, 1e-6 * (1 + std::abs(expected)))
          << i / columns << ", " << i % columns;
    }
    std::vector<double> factors;
    for (int r = 0; r < kRows; ++r) {
      double squares = 0;
      for (int c = 0; c < columns; ++c) squares += sum(r, c) * sum(r, c);
      factors.push_back(1 / std::sqrt(squares / columns + kEpsilon));
    }
    out.Expect([&](int r, int c) {
      const int row = indices.empty() ? r : indices[static_cast<size_t>(r)];
      return sum(row, c) * factors[static_cast<size_t>(row)] * weight[static_cast<size_t>(c)];
    });
  }
}

template <class Machine>
void ExpectRotation(Machine& machine, int head_dim, bool fp8, bool bias, bool norms) {
  constexpr int kRows = 5, kPositions = 40, kBlocks = 6, kBlockSize = 8, kHeads = 6, kKvHeads = 2;
  constexpr uint16_t kUntouched = 0x1234;
  const int half = head_dim / 2, columns = (kHeads + 2 * kKvHeads) * head_dim;
  MadeUp made_up(3);
  TestProduct<Machine> qkv(machine, made_up, kRows, columns, fp8);
  const Floats biases = made_up.Normal(columns), query_norm = made_up.Normal(head_dim),
               key_norm = made_up.Normal(head_dim);
  const Floats cosines = made_up.Normal(kPositions * half), sines = made_up.Normal(kPositions * half);
  const std::vector<cuda::RowPlace> places = {{17, 4, 1}, {39, 0, 7}, {0, 5, 0}, {1, 5, 1}, {17, 2, 1}};
  auto biases_on_machine = machine.Copy(biases), query_norm_on_machine = machine.Copy(query_norm),
       key_norm_on_machine = machine.Copy(key_norm);
  cuda::HeadFinish finish{.epsilon = 1e-2f};
  if (bias) finish.bias = biases_on_machine.data();
  if (norms) finish.query_norm = query_norm_on_machine.data();
  if (norms) finish.key_norm = key_norm_on_machine.data();
  // A block has more than this layer's keys and values.
  const int part = kKvHeads * kBlockSize * head_dim, stride = 2 * part + 16;
  auto queries = machine.Copy(Halves(static_cast<size_t>(kRows * kHeads * head_dim), kUntouched));
  auto cache = machine.Copy(Halves(static_cast<size_t>(kBlocks * stride), kUntouched));
  machine.RotateAndStore(qkv.product(), finish, machine.Copy(places).data(), machine.Copy(cosines).data(),
                         machine.Copy(sines).data(), {kHeads, kKvHeads, head_dim}, queries.data(),
                         {cache.data(), stride, kBlockSize}, kRows);
  const Halves found_queries = queries.Read();
  Halves found_cache = cache.Read();
  for (int r = 0; r < kRows; ++r) {
    const cuda::RowPlace& place = places[static_cast<size_t>(r)];
    for (int head = 0; head < kHeads + 2 * kKvHeads; ++head) {
      const bool is_value = head >= kHeads + kKvHeads;
      std::vector<double> x(static_cast<size_t>(head_dim));
      double squares = 0;
      for (int d = 0; d < head_dim; ++d) {
        const int column = head * head_dim + d;
        x[static_cast<size_t>(d)] = qkv(r, column) + (bias ? biases[static_cast<size_t>(column)] : 0.0f);
        squares += x[static_cast<size_t>(d)] * x[static_cast<size_t>(d)];
      }
      for (int d = 0; norms && !is_value && d < head_dim; ++d) {
        const Floats& norm = head < kHeads ? query_norm : key_norm;
        x[static_cast<size_t>(d)] *= norm[static_cast<size_t>(d)] / std::sqrt(squares / head_dim + 1e-2);
      }
      for (int d = 0; d < head_dim; ++d) {
        const size_t angle = static_cast<size_t>(place.position * half + d % half);
        const double low = x[static_cast<size_t>(d % half)], high = x[static_cast<size_t>(half + d % half)];
        const double turned = d < half ? low * cosines[angle] - high * sines[angle]
                                       : high * cosines[angle] + low * sines[angle];
        const double expected = is_value ? x[static_cast<size_t>(d)] : turned;
        uint16_t found;
        if (head < kHeads) {
          found = found_queries[static_cast<size_t>((r * kHeads + head) * head_dim + d)];
        } else {
          const int kv_head = (head - kHeads) % kKvHeads;
          uint16_t& in_cache =
              found_cache[static_cast<size_t>(place.block * stride + (is_value ? part : 0) +
                                              (kv_head * kBlockSize + place.slot) * head_dim + d)];
          found = std::exchange(in_cache, kUntouched);
        }
        // The two products may nearly cancel.
        const double unit = std::abs(expected) * 0x1p-8 + 1e-5 * (std::abs(low) + std::abs(high));
        ASSERT_NEAR(FromBFloat16(found), expected, 1.01 * unit) << r << ", head " << head << ", " << d;
      }
    }
  }
  EXPECT_EQ(std::count(found_cache.begin(), found_cache.end(), kUntouched), kBlocks * stride);
}

// Rows of different sizes, one of zeros, and one whose largest is far above the rest.
template <class Machine>
void ExpectQuantization(Machine& machine) {
  constexpr int kRows = 4;
  for (const int columns : kColumns) {
    MadeUp made_up(4);
    Halves x = made_up.NormalHalves(kRows * columns);
    for (int c = 0; c < columns; ++c) {
      x[static_cast<size_t>(columns + c)] = 0;
      uint16_t& large = x[static_cast<size_t>(2 * columns + c)];
      large = ToBFloat16(1e20f * FromBFloat16(large));
    }
    x[static_cast<size_t>(3 * columns + columns / 2)] = ToBFloat16(-5000);
    TestOperand<Machine> out(machine, kRows, columns, /*fp8=*/true);
    machine.Quantize(machine.Copy(x).data(), out.operand(), kRows, columns);
    out.Expect([&](int r, int c) { return FromBFloat16(x[static_cast<size_t>(r * columns + c)]); });
  }
}

template <class Machine>
void ExpectSiluMul(Machine& machine, bool fp8) {
  constexpr int kRows = 3;
  for (const int columns : kColumns) {
    MadeUp made_up(5);
    TestProduct<Machine> gate_up(machine, made_up, kRows, 2 * columns, fp8);
    TestOperand<Machine> out(machine, kRows, columns, fp8);
    machine.SiluMul(gate_up.product(), out.operand(), kRows, columns);
    out.Expect([&](int r, int c) {
      const double gate = gate_up(r, c);
      return gate / (1 + std::exp(-gate)) * gate_up(r, columns + c);
    });
  }
}

template <class Machine>
void ExpectScaledLogits(Machine& machine) {
  constexpr int kRows = 3;
  for (const int columns : kColumns) {
    MadeUp made_up(6);
    TestProduct<Machine> product(machine, made_up, kRows, columns, /*fp8=*/true);
    machine.Scale(product.product(), product.y(), kRows, columns);
    const Floats found = product.Read();
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < columns; ++c) {
        const double expected = product(r, c);
        ASSERT_NEAR(found[static_cast<size_t>(r * columns + c)], expected, 1e-6 * std::abs(expected));
      }
    }
  }
}

// Rows with 1, 3, no and 7 partial results.
template <class Machine>
void ExpectMergedPartials(Machine& machine) {
  constexpr int kHeads = 3, kHeadDim = 64, kWidth = kHeads * kHeadDim, kPartials = 12;
  constexpr uint16_t kUntouched = 0x1234;
  MadeUp made_up(7);
  const std::vector<int32_t> first = {0, 1, 4, 5}, splits = {1, 3, 0, 7};
  const Halves partials = made_up.NormalHalves(kPartials * kWidth);
  Floats sums = made_up.Normal(kPartials * kHeads, 3);
  sums[static_cast<size_t>(6 * kHeads)] = -5e4f;  // a split before the window
  auto out = machine.Copy(Halves(4 * kWidth, kUntouched));
  machine.Merge(machine.Copy(partials).data(), machine.Copy(sums).data(), machine.Copy(first).data(),
                machine.Copy(splits).data(), kHeads, kHeadDim, /*rows=*/4, out.data());
  const Halves found = out.Read();
  for (int i = 0; i < 4 * kWidth; ++i) {
    const size_t row = static_cast<size_t>(i / kWidth);
    const int column = i % kWidth, head = column / kHeadDim;
    if (splits[row] == 0) {
      ASSERT_EQ(found[static_cast<size_t>(i)], kUntouched);
      continue;
    }
    double total = 0, merged = 0, magnitude = 0;
    for (int p = first[row]; p < first[row] + splits[row]; ++p) {
      const double weight = std::exp2(double{sums[static_cast<size_t>(p * kHeads + head)]});
      const double value = FromBFloat16(partials[static_cast<size_t>(p * kWidth + column)]);
      total += weight;
      merged += weight * value;
      magnitude += weight * std::abs(value);
    }
    const size_t single = static_cast<size_t>(first[row] * kWidth + column);
    if (splits[row] == 1) {
      ASSERT_EQ(found[static_cast<size_t>(i)], partials[single]);
      continue;
    }
    const double expected = merged / total;
    const double unit = std::abs(expected) * 0x1p-8 + 1e-5 * magnitude / total;
    ASSERT_NEAR(FromBFloat16(found[static_cast<size_t>(i)]), expected, 1.01 * unit) << "row " << row;
  }
}

}  // namespace outrider::testing
