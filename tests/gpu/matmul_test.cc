// Matrix products with every shape of weights of Llama 3.2 1B and 3B are right, and a row has the same bits
// whatever other rows are in its batch.
#include "common/engine/cuda/matmul.h"

#include <cmath>
#include <numeric>
#include <string>

#include "common/engine/decoder/narrow_floats.h"
#include "gpu_testing.h"
#include "tests/unit/layer_testing.h"

namespace outrider::testing {
namespace {

using cuda::Matmul;
using cuda::Operand;

constexpr int kMaxRows = 512;

struct WeightShape {
  const char* name;
  int n, k;
};

// 1B: hidden_size 2048, 32 + 2 * 8 heads of 64, intermediate_size 8192, vocab_size 128256.
// 3B: 3072, 24 + 2 * 8 heads of 128, 8192, 128256.
constexpr WeightShape kShapes[] = {{"1B qkv", 3072, 2048},       {"1B o_proj", 2048, 2048},
                                   {"1B gate_up", 16384, 2048},  {"1B down_proj", 2048, 8192},
                                   {"1B head", 128256, 2048},    {"3B qkv", 5120, 3072},
                                   {"3B o_proj", 3072, 3072},    {"3B gate_up", 16384, 3072},
                                   {"3B down_proj", 3072, 8192}, {"3B head", 128256, 3072}};

// All counts up to 64, then some larger ones.
std::vector<int> RowCounts() {
  std::vector<int> counts(64);
  std::iota(counts.begin(), counts.end(), 1);
  counts.insert(counts.end(), {65, 80, 96, 127, 128, 129, 200, 256, 257, 300, 384, 511, 512});
  return counts;
}

// Random operands, which repeat after a prime number of elements: no two rows are the same, and the host
// needs only one period.
class Elements {
 public:
  Elements(Operand operand, uint64_t seed, size_t size)
      : operand_(operand), values_(MadeUp(seed).Normal(kPeriod)), on_gpu_(size * OperandBytes(operand)) {
    std::vector<char> period(kPeriod * OperandBytes(operand));
    for (size_t i = 0; i < kPeriod; ++i) {
      const uint16_t half = ToBFloat16(values_[i]);
      const uint8_t byte = ToFloat8(values_[i]);
      if (operand == Operand::kFp8) {
        period[i] = static_cast<char>(byte);
        values_[i] = FromFloat8(byte);
      } else {
        std::memcpy(&period[2 * i], &half, sizeof(half));
        values_[i] = FromBFloat16(half);
      }
    }
    const size_t bytes = size * OperandBytes(operand);
    size_t filled = std::min(bytes, period.size());
    Expect(cudaMemcpy(on_gpu_.data(), period.data(), filled, cudaMemcpyHostToDevice));
    while (filled < bytes) {  // whole periods, so that the next copy continues them
      const size_t more = std::min(filled, bytes - filled);
      Expect(cudaMemcpy(on_gpu_.data() + filled, on_gpu_.data(), more, cudaMemcpyDeviceToDevice));
      filled += more;
    }
  }

  const void* At(size_t index) const { return on_gpu_.data() + index * OperandBytes(operand_); }
  float operator[](size_t index) const { return values_[index % kPeriod]; }

 private:
  static constexpr int kPeriod = 1000003;

  const Operand operand_;
  Floats values_;
  DeviceArray<char> on_gpu_;
};

// A product with made-up weights.
class TestMatmul {
 public:
  TestMatmul(Operand operand, const WeightShape& shape)
      : shape_(shape),
        matmul_(Matmul::Create(operand, /*choices_file=*/"", kDefaultStream).value()),
        plan_(matmul_->Plan(shape.n, shape.k).value()),
        // A product of the last row reads as far as rows are padded.
        x_(operand, 1, Size(kMaxRows + cuda::kRowTile, shape.k)),
        w_(operand, 2, Size(shape.n, shape.k)),
        y_(Size(kMaxRows, shape.n)) {}

  // The product of rows first, first + 1, ... of x. Valid until the next call.
  const float* Run(int first, int rows) {
    const absl::Status status = matmul_->Run(plan_, x_.At(Size(first, shape_.k)), w_.At(0), y_.data(), rows);
    EXPECT_TRUE(status.ok()) << status;
    return y_.data();
  }

  void ExpectRight(const Floats& y, int row, int column) const {
    double sum = 0, magnitude = 0;
    for (int i = 0; i < shape_.k; ++i) {
      const double product = double{x_[Size(row, shape_.k) + i]} * w_[Size(column, shape_.k) + i];
      sum += product;
      magnitude += std::abs(product);
    }
    // Tensor cores keep fewer bits of fp8 sums.
    EXPECT_NEAR(y[Size(row, shape_.n) + column], sum, magnitude * 0x1p-10)
        << "row " << row << ", column " << column;
  }

  size_t Size(int rows, int columns) const {
    return static_cast<size_t>(rows) * static_cast<size_t>(columns);
  }

 private:
  const WeightShape shape_;
  const std::unique_ptr<Matmul> matmul_;
  const int plan_;
  const Elements x_, w_;
  const DeviceArray<float> y_;
};

class MatmulTest : public ::testing::TestWithParam<std::tuple<Operand, WeightShape>> {};

TEST_P(MatmulTest, RowsAreRightAndTheSameInAnyCompany) {
  const auto& [operand, shape] = GetParam();
  TestMatmul matmul(operand, shape);
  const size_t n = static_cast<size_t>(shape.n);
  const DeviceArray<float> alone_on_gpu(kMaxRows * n);
  for (int r = 0; r < kMaxRows; ++r) {
    Expect(cudaMemcpy(alone_on_gpu.data() + r * n, matmul.Run(r, 1), n * sizeof(float),
                      cudaMemcpyDeviceToDevice));
  }
  const Floats alone = alone_on_gpu.Read();
  MadeUp made_up(3);
  for (int i = 0; i < 300; ++i) matmul.ExpectRight(alone, made_up.Below(kMaxRows), made_up.Below(shape.n));

  Floats y(kMaxRows * n);
  const auto expect_same = [&](int first, int rows) {
    Expect(cudaMemcpy(y.data(), matmul.Run(first, rows), rows * n * sizeof(float), cudaMemcpyDeviceToHost));
    for (int r = 0; r < rows; ++r) {
      ASSERT_EQ(std::memcmp(&y[r * n], &alone[(first + r) * n], n * sizeof(float)), 0)
          << "row " << first + r << " among " << rows << " from " << first;
    }
  };
  for (const int rows : RowCounts()) expect_same(0, rows);
  expect_same(7, 33);
  expect_same(100, 412);
}

std::string NameOf(const ::testing::TestParamInfo<MatmulTest::ParamType>& info) {
  std::string name = std::get<1>(info.param).name;
  name.replace(name.find(' '), 1, "_");
  return name + (std::get<0>(info.param) == Operand::kFp8 ? "_fp8" : "_bfloat16");
}

INSTANTIATE_TEST_SUITE_P(Llama, MatmulTest,
                         ::testing::Combine(::testing::Values(Operand::kBFloat16, Operand::kFp8),
                                            ::testing::ValuesIn(kShapes)),
                         NameOf);

}  // namespace
}  // namespace outrider::testing
