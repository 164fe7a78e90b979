// Checkpoints that are stored quantised: they have the weights of compressed-tensors and of the layouts of
// GPTQ and AWQ, and the logits of transformers.
#include <algorithm>

#include "common/engine/decoder/unpacked_tensors.h"
#include "tests/unit/engine_goldens.h"

namespace outrider::testing {
namespace {

using ::testing::ElementsAreArray;

class QuantisedModel : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(All, QuantisedModel, ::testing::ValuesIn(QuantisedModels()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST_P(QuantisedModel, WeightsAreThoseOfTheReferenceBitForBit) {
  const SafeTensors stored = *SafeTensors::Open(DataDir(GetParam()));
  const ModelConfig config = *ReadModelConfig(DataDir(GetParam()));
  const UnpackedTensors unpacked(stored, *config.quantization);
  const std::vector<int64_t> shape = {config.decoder.hidden_size, config.decoder.intermediate_size};
  const absl::StatusOr<TensorView> view = unpacked.Get("model.layers.0.mlp.down_proj.weight", shape);
  ASSERT_TRUE(view.ok()) << view.status();
  std::vector<float> golden(view->bytes() / sizeof(float));
  std::ifstream stream(DataDir(GetParam()) + "/golden_weight.f32", std::ios::binary);
  stream.read(reinterpret_cast<char*>(golden.data()), static_cast<std::streamsize>(view->bytes()));
  ASSERT_TRUE(stream.good());
  const float* const weights = reinterpret_cast<const float*>(view->data);
  EXPECT_THAT(std::vector<float>(weights, weights + golden.size()), ElementsAreArray(golden));
}

TEST_P(QuantisedModel, Float32LogitsAreThoseOfTransformers) {
  const auto runner = LoadOrDie(Options(GetParam()));
  const Golden golden = ReadGolden(GetParam(), runner->config().decoder.vocab_size);
  EXPECT_LE(LargestDifference(AllLogits(*runner, golden.tokens), golden.logits), 1e-4 * golden.spread);
}

TEST_P(QuantisedModel, Int8LogitsAreNear) {
  RunnerOptions options = Options(GetParam());
  options.dtype = "int8";
  const auto runner = LoadOrDie(options);
  const Golden golden = ReadGolden(GetParam(), runner->config().decoder.vocab_size);
  EXPECT_LE(RootMeanSquareDifference(AllLogits(*runner, golden.tokens), golden.logits), 0.1 * golden.spread);
}

}  // namespace
}  // namespace outrider::testing
