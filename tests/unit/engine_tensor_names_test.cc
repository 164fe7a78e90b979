#include "common/engine/decoder/decoder_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace outrider {
namespace {

using ::testing::ElementsAre;

DecoderConfig SmallSpec() {
  return {.vocab_size = 100,
          .hidden_size = 12,
          .intermediate_size = 20,
          .layers = 2,
          .heads = 6,
          .kv_heads = 2,
          .head_dim = 4};
}

auto IsTensor(const std::string& name, const std::vector<int64_t>& shape) {
  return ::testing::AllOf(::testing::Field(&StoredTensor::name, name),
                          ::testing::Field(&StoredTensor::shape, shape));
}

TEST(TensorNames, ALayersMatricesAreFusedOfTheirParts) {
  const DecoderTensors tensors = TensorsOf(SmallSpec());
  ASSERT_EQ(tensors.layers.size(), 2u);
  const LayerTensors& layer = tensors.layers[1];
  EXPECT_THAT(layer.attention_norm, IsTensor("model.layers.1.input_layernorm.weight", {12}));
  EXPECT_THAT(layer.qkv.parts, ElementsAre(IsTensor("model.layers.1.self_attn.q_proj.weight", {24, 12}),
                                           IsTensor("model.layers.1.self_attn.k_proj.weight", {8, 12}),
                                           IsTensor("model.layers.1.self_attn.v_proj.weight", {8, 12})));
  EXPECT_THAT(layer.attention_out.parts,
              ElementsAre(IsTensor("model.layers.1.self_attn.o_proj.weight", {12, 24})));
  EXPECT_THAT(layer.mlp_norm, IsTensor("model.layers.1.post_attention_layernorm.weight", {12}));
  EXPECT_THAT(layer.gate_up.parts, ElementsAre(IsTensor("model.layers.1.mlp.gate_proj.weight", {20, 12}),
                                               IsTensor("model.layers.1.mlp.up_proj.weight", {20, 12})));
  EXPECT_THAT(layer.mlp_out.parts, ElementsAre(IsTensor("model.layers.1.mlp.down_proj.weight", {12, 20})));
}

TEST(TensorNames, ATiedHeadIsTheEmbedding) {
  DecoderConfig spec = SmallSpec();
  EXPECT_THAT(TensorsOf(spec).final_norm, IsTensor("model.norm.weight", {12}));
  EXPECT_THAT(TensorsOf(spec).embedding, IsTensor("model.embed_tokens.weight", {100, 12}));
  EXPECT_THAT(TensorsOf(spec).head.parts, ElementsAre(IsTensor("lm_head.weight", {100, 12})));
  spec.tie_word_embeddings = true;
  EXPECT_THAT(TensorsOf(spec).head.parts, ElementsAre(IsTensor("model.embed_tokens.weight", {100, 12})));
}

}  // namespace
}  // namespace outrider
