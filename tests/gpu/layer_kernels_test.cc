// Compares the kernels of a layer with the formulas that test their source on the host.
#include "common/engine/cuda/layer_kernels.h"

#include "gpu_testing.h"
#include "tests/unit/layer_testing.h"

namespace outrider::testing {
namespace {

// A GPU as a machine of layer_testing.h.
class KernelsOfGpu {
 public:
  template <class T>
  DeviceArray<T> Copy(const std::vector<T>& values) const {
    return DeviceArray<T>(values);
  }

  void Embed(const int32_t* tokens, const uint16_t* table, float* hidden, int rows, int columns) const {
    cuda::LaunchEmbed(tokens, Elements(table), hidden, rows, columns, kDefaultStream);
    Expect(cudaGetLastError());
  }
  void AddNorm(const cuda::Product& product, float* hidden, const float* weight, float epsilon,
               const cuda::OperandRows& out, int rows, int columns) const {
    cuda::LaunchAddNorm(product, hidden, weight, epsilon, out, rows, columns, kDefaultStream);
    Expect(cudaGetLastError());
  }
  void AddNormOf(const int32_t* indices, const cuda::Product& product, const float* hidden,
                 const float* weight, float epsilon, const cuda::OperandRows& out, int rows,
                 int columns) const {
    cuda::LaunchAddNormOf(indices, product, hidden, weight, epsilon, out, rows, columns, kDefaultStream);
    Expect(cudaGetLastError());
  }
  void RotateAndStore(const cuda::Product& qkv, const cuda::HeadFinish& finish, const cuda::RowPlace* places,
                      const float* cosines, const float* sines, const cuda::HeadShape& shape,
                      uint16_t* queries, const cuda::KvLayerView& kv, int rows) const {
    cuda::LaunchRotateAndStore(qkv, finish, places, cosines, sines, shape,
                               reinterpret_cast<__nv_bfloat16*>(queries), kv, rows, kDefaultStream);
    Expect(cudaGetLastError());
  }
  void Quantize(const uint16_t* x, const cuda::OperandRows& out, int rows, int columns) const {
    cuda::LaunchQuantize(Elements(x), out, rows, columns, kDefaultStream);
    Expect(cudaGetLastError());
  }
  void SiluMul(const cuda::Product& gate_up, const cuda::OperandRows& out, int rows, int columns) const {
    cuda::LaunchSiluMul(gate_up, out, rows, columns, kDefaultStream);
    Expect(cudaGetLastError());
  }
  void Scale(const cuda::Product& product, float* y, int rows, int columns) const {
    cuda::LaunchScale(product, y, rows, columns, kDefaultStream);
    Expect(cudaGetLastError());
  }

 private:
  static const __nv_bfloat16* Elements(const uint16_t* bits) {
    return reinterpret_cast<const __nv_bfloat16*>(bits);
  }
};

KernelsOfGpu gpu;

TEST(LayerKernels, EmbeddingsAreThoseOfTheTokens) { ExpectEmbedding(gpu); }

TEST(LayerKernels, ANormFollowsTheSum) {
  for (const bool fp8 : {false, true}) {
    for (const bool with_product : {false, true}) {
      ExpectNorm(gpu, fp8, with_product, {});
      ExpectNorm(gpu, fp8, with_product, {4, 0, 3});
    }
  }
}

// A row of ones, whose norm is 1.
TEST(LayerKernels, TheWidestRowFitsIntoABlocksMemory) {
  constexpr int kColumns = cuda::kMaxNormed;
  DeviceArray<float> hidden(std::vector<float>(kColumns, 1)), scale(1);
  const DeviceArray<float> weight(std::vector<float>(kColumns, 1));
  const DeviceArray<uint16_t> halves(kColumns);
  const DeviceArray<uint8_t> bytes(kColumns);
  gpu.AddNorm({}, hidden.data(), weight.data(), /*epsilon=*/0, {halves.data(), nullptr}, 1, kColumns);
  gpu.AddNorm({}, hidden.data(), weight.data(), /*epsilon=*/0, {bytes.data(), scale.data()}, 1, kColumns);
  EXPECT_EQ(halves.Read(), Halves(kColumns, ToBFloat16(1)));
  EXPECT_EQ(bytes.Read(), std::vector<uint8_t>(kColumns, 0x7e));  // 448, the largest number
  EXPECT_FLOAT_EQ(scale.Read()[0], 1.0f / 448);
}

TEST(LayerKernels, HeadsAreRotatedAndStored) {
  for (const int head_dim : {64, 128}) {
    for (const bool fp8 : {false, true}) {
      for (const bool bias : {false, true}) {
        for (const bool norms : {false, true}) ExpectRotation(gpu, head_dim, fp8, bias, norms);
      }
    }
  }
}

TEST(LayerKernels, QuantisedRowsHaveTheirOwnScale) { ExpectQuantization(gpu); }

TEST(LayerKernels, TheGateIsMultiplied) {
  ExpectSiluMul(gpu, /*fp8=*/false);
  ExpectSiluMul(gpu, /*fp8=*/true);
}

TEST(LayerKernels, LogitsAreScaled) { ExpectScaledLogits(gpu); }

}  // namespace
}  // namespace outrider::testing
