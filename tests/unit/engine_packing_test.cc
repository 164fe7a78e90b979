// How weights are rounded when they are packed for the CPU's kernels.
#include "common/engine/cpu/cpu_weights.h"

#include <gmock/gmock.h>

#include <bit>
#include <cmath>
#include <limits>

#include "common/engine/decoder/tensor_source.h"
#include "common/engine/memory.h"

namespace outrider::testing {
namespace {

using ::testing::ElementsAre;

// One row of weights, packed and read back.
std::vector<float> Packed(std::vector<float> weights, Storage storage) {
  const int k = static_cast<int>(weights.size());
  TensorView tensor;
  tensor.type = ElementType::kFloat32;
  tensor.shape = {1, k};
  tensor.data = reinterpret_cast<const char*>(weights.data());
  const Buffer buffer = *Buffer::Allocate(PackedBytes(1, k, storage), "weights");
  ThreadPool pool(1);
  Pack(Concatenated({tensor}), storage, pool, buffer.data());
  std::vector<float> read;
  for (int i = 0; i < k; ++i) {
    const int at = i / 2 * kPanel * 2 + i % 2;  // column 0
    if (storage == Storage::kBFloat16) {
      read.push_back(FromBFloat16(reinterpret_cast<const uint16_t*>(buffer.data())[at]));
    } else {
      const auto* bytes = reinterpret_cast<const int8_t*>(buffer.data() + kScaleBytes);
      read.push_back(buffer.floats()[0] * static_cast<float>(bytes[at]));
    }
  }
  return read;
}

TEST(Pack, RoundsToTheNearestBFloat16AndTiesToTheEvenOne) {
  // Between 1 and 2 the numbers of eight bits are 1/128 apart.
  constexpr float kStep = 1.0f / 128, kTie = kStep / 2, kLittle = kStep / 256;
  EXPECT_THAT(Packed({1 + kTie + kLittle, 1 + kTie - kLittle, -(1 + kTie + kLittle), 1 + kTie,  //
                      1 + kStep + kTie, 1 - kLittle},
                     Storage::kBFloat16),
              ElementsAre(1 + kStep, 1, -(1 + kStep), 1, 1 + 2 * kStep, 1));
}

TEST(Pack, KeepsWhatIsNotFiniteVisibleInBFloat16) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  // Only the lowest bit of this NaN's payload is set, and rounding drops it.
  const std::vector<float> read = Packed({kInfinity, std::bit_cast<float>(0x7f800001)}, Storage::kBFloat16);
  EXPECT_EQ(read[0], kInfinity);
  EXPECT_TRUE(std::isnan(read[1]));
}

TEST(Pack, RoundsToTheNearestOf255StepsInInt8) {
  const std::vector<float> read = Packed({127, 1.6f, -1.6f, 0.4f, -127, 2.5f}, Storage::kInt8);
  EXPECT_THAT(read, ElementsAre(127, 2, -2, 0, -127, 2));
}

}  // namespace
}  // namespace outrider::testing
