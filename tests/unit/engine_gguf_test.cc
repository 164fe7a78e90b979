// GGUF files that llama.cpp's converter made of the small models (scripts/goldens converted): they have the
// configuration, the weights and the logits of their folders.
#include "common/engine/decoder/checkpoint.h"
#include "tests/unit/engine_helpers.h"

namespace outrider {
namespace {

using ::outrider::testing::AllLogits;
using ::outrider::testing::DataDir;
using ::outrider::testing::LoadOrDie;
using ::outrider::testing::Options;
using ::outrider::testing::SomeTokens;
using ::testing::HasSubstr;

class Converted : public ::testing::TestWithParam<std::string> {
 protected:
  std::string file() const { return DataDir(GetParam()) + "/model.gguf"; }
  std::unique_ptr<const Checkpoint> OpenOrDie(const std::string& model) {
    auto opened = Checkpoint::Open(model);
    EXPECT_TRUE(opened.ok()) << opened.status();
    return opened.ok() ? *std::move(opened) : nullptr;
  }

  const std::unique_ptr<const Checkpoint> folder_ = OpenOrDie(DataDir(GetParam()));
  const std::unique_ptr<const Checkpoint> file_ = OpenOrDie(file());
};

// Without Gemma, which only the engine on libtorch runs.
class ConvertedNative : public Converted {};

INSTANTIATE_TEST_SUITE_P(Small, ConvertedNative,
                         ::testing::Values("mha-float32", "gqa4-llama3-rope", "qwen2-bias",
                                           "qwen3-head-norms", "mistral-window"));
INSTANTIATE_TEST_SUITE_P(Small, Converted,
                         ::testing::Values("mha-float32", "gqa4-llama3-rope", "qwen2-bias",
                                           "qwen3-head-norms", "mistral-window", "gemma2", "gemma3"));

TEST_P(Converted, HasTheConfiguration) {
  const DecoderConfig &ours = file_->config().decoder, &theirs = folder_->config().decoder;
  EXPECT_EQ(ours.vocab_size, theirs.vocab_size);
  EXPECT_EQ(ours.hidden_size, theirs.hidden_size);
  EXPECT_EQ(ours.intermediate_size, theirs.intermediate_size);
  EXPECT_EQ(ours.layers, theirs.layers);
  EXPECT_EQ(ours.heads, theirs.heads);
  EXPECT_EQ(ours.kv_heads, theirs.kv_heads);
  EXPECT_EQ(ours.head_dim, theirs.head_dim);
  EXPECT_EQ(ours.max_position_embeddings, theirs.max_position_embeddings);
  EXPECT_FLOAT_EQ(static_cast<float>(ours.rms_norm_eps), static_cast<float>(theirs.rms_norm_eps));
  EXPECT_EQ(ours.tie_word_embeddings, theirs.tie_word_embeddings);
  EXPECT_EQ(ours.qkv_bias, theirs.qkv_bias);
  EXPECT_EQ(ours.qk_norm, theirs.qk_norm);
  EXPECT_EQ(ours.activation, theirs.activation);
  EXPECT_EQ(ours.output_norms, theirs.output_norms);
  EXPECT_EQ(ours.embedding_scale, theirs.embedding_scale);
  EXPECT_EQ(ours.attention_softcap, theirs.attention_softcap);
  EXPECT_EQ(ours.final_softcap, theirs.final_softcap);
  const std::vector<float> frequencies = RopeInverseFrequencies(ours);
  const std::vector<float> expected = RopeInverseFrequencies(theirs);
  ASSERT_EQ(frequencies.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_FLOAT_EQ(frequencies[i], expected[i]);
  EXPECT_EQ(file_->config().eos_token_ids, std::vector<TokenId>{2});
  EXPECT_EQ(file_->config().bos_token_id, 1);
}

// Whether the tensor is a norm that the file has with its 1 added.
bool IsMoved(const DecoderConfig& folder, const StoredTensor& tensor) {
  return folder.norms_plus_one && tensor.name.find("norm") != std::string::npos;
}

TEST_P(Converted, HasTheWeightsToTheBit) {
  DecoderTensors tensors = TensorsOf(folder_->config().decoder);
  std::vector<StoredTensor> all = {tensors.embedding, tensors.final_norm, tensors.head.parts[0]};
  for (const LayerTensors& layer : tensors.layers) {
    all.insert(all.end(), {layer.attention_norm, layer.mlp_norm});
    for (const auto& list : {layer.qkv_bias, layer.qk_norm, layer.output_norms, layer.qkv.parts,
                             layer.attention_out.parts, layer.gate_up.parts, layer.mlp_out.parts}) {
      all.insert(all.end(), list.begin(), list.end());
    }
  }
  for (const StoredTensor& tensor : all) {
    EXPECT_TRUE(file_->weights().Check(tensor.name, tensor.shape).ok());
    const auto ours = file_->weights().Get(tensor.name, tensor.shape);
    const auto theirs = folder_->weights().Get(tensor.name, tensor.shape);
    ASSERT_TRUE(ours.ok() && theirs.ok()) << ours.status() << theirs.status();
    std::vector<float> expected = AllElements(*theirs);
    if (IsMoved(folder_->config().decoder, tensor)) {
      for (float& value : expected) value += 1;
    }
    EXPECT_EQ(AllElements(*ours), expected) << tensor.name;
  }
}

TEST_P(ConvertedNative, HasTheLogits) {
  RunnerOptions options = Options(GetParam());
  const auto theirs = LoadOrDie(options);
  options.model_dir = file();
  const auto ours = LoadOrDie(options);
  ASSERT_TRUE(theirs != nullptr && ours != nullptr);
  // The format has no sliding windows for Qwen and Mistral, so the tokens stay within the narrowest one.
  const std::vector<TokenId> tokens = SomeTokens(16, theirs->config().decoder.vocab_size);
  const auto logits = AllLogits(*ours, tokens), expected = AllLogits(*theirs, tokens);
  for (size_t row = 0; row < expected.size(); ++row) {
    for (size_t i = 0; i < expected[row].size(); ++i) {
      ASSERT_NEAR(logits[row][i], expected[row][i], 1e-5) << row << ", " << i;
    }
  }
}

TEST_P(Converted, NamesATensorThatIsMissingOrHasAnotherShape) {
  const TensorSource& weights = file_->weights();
  const int64_t hidden = file_->config().decoder.hidden_size;
  EXPECT_THAT(weights.Get("model.norm.weight", {hidden + 1}).status().message(),
              HasSubstr("model.gguf: tensor output_norm.weight: shape ["));
  EXPECT_THAT(weights.Get("model.layers.99.mlp.up_proj.weight", {1, hidden}).status().message(),
              HasSubstr("model.gguf: no tensor blk.99.ffn_up.weight"));
  EXPECT_THAT(weights.Check("heads.0.weight", {hidden}).message(), HasSubstr("no tensor heads.0.weight"));
}

}  // namespace
}  // namespace outrider
