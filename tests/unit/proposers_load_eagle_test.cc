// Folders of EAGLE: the layouts that others publish, and those that are refused.
#include <numeric>

#include "heads_load_testing.h"

namespace outrider {
namespace {

using testing::EagleFiles;
using testing::ErrorOf;
using testing::Filled;
using testing::HeadFiles;
using testing::HeadTensor;
using testing::kHeadHidden;
using testing::kHeadVocab;
using testing::ProposalsOf;
using testing::Same;
using testing::TargetHead;
using testing::With;

class EagleLayout : public ::testing::Test {
 protected:
  static std::vector<Proposal> Proposals(const HeadFiles& files) {
    return ProposalsOf(files, ProposerKind::kEagle);
  }
  // The layout of its authors: the config of a Llama with one layer.
  static HeadFiles Published(HeadFiles files) {
    files.config.erase("proposer");
    files.config.update({{"architectures", {"LlamaForCausalLM"}},
                         {"model_type", "llama"},
                         {"num_hidden_layers", 1},
                         {"hidden_size", kHeadHidden},
                         {"vocab_size", kHeadVocab},
                         {"hidden_act", "silu"},
                         {"max_position_embeddings", 2048},
                         {"rope_scaling", nullptr},
                         {"tie_word_embeddings", false},
                         {"torch_dtype", "float16"}});
    return files;
  }

  std::mt19937 random_{4};
  const HeadFiles own_ = EagleFiles(random_);
};

TEST_F(EagleLayout, OfItsAuthorsIsRead) {
  const std::vector<Proposal> expected = Proposals(own_);
  HeadFiles published = Published(own_);
  EXPECT_TRUE(Same(Proposals(published), expected));
  // An embedding in the file is ignored: the target's is used.
  published.tensors["embed_tokens.weight"] = testing::Random({kHeadVocab, kHeadHidden}, 1, random_);
  EXPECT_TRUE(Same(Proposals(published), expected));
  EXPECT_FALSE(Same(Proposals(Published(EagleFiles(random_))), expected)) << "other numbers";
}

TEST_F(EagleLayout, MayHaveABias) {
  HeadFiles files = Published(own_);
  files.tensors["fc.bias"] = Filled({kHeadHidden}, 0);
  EXPECT_TRUE(Same(Proposals(files), Proposals(own_)));
  files.tensors["fc.bias"] = testing::Random({kHeadHidden}, 1, random_);
  EXPECT_FALSE(Same(Proposals(files), Proposals(own_)));
}

// EAGLE-3, whose own layout states what its authors' layout implies.
class Eagle3Layout : public EagleLayout {
 protected:
  static HeadFiles Published3(HeadFiles files) {
    files = Published(std::move(files));
    files.config.erase("eagle_version");
    files.config.erase("feature_layers");
    files.config["eagle_aux_hidden_state_layer_ids"] = {1, 1, 2};
    files.config["bias"] = false;
    files.integers["t2d"] = std::vector<int64_t>(kHeadVocab, 0);
    return files;
  }

  const HeadFiles three_ = testing::Eagle3Files(random_);
};

TEST_F(Eagle3Layout, OfItsAuthorsIsRead) {
  const std::vector<Proposal> expected = Proposals(three_);
  EXPECT_TRUE(Same(Proposals(Published3(three_)), expected));
  EXPECT_FALSE(Same(Proposals(Published3(testing::Eagle3Files(random_))), expected)) << "other numbers";
  HeadFiles biased = three_;
  biased.tensors["fc.bias"] = testing::Random({kHeadHidden}, 1, random_);
  EXPECT_FALSE(Same(Proposals(biased), expected));
}

// Each number of the config and each tensor counts.
TEST_F(Eagle3Layout, IsComputedFromAllOfIt) {
  const std::vector<Proposal> expected = Proposals(three_);
  EXPECT_FALSE(Same(Proposals(With(three_, "norm_before_residual", true)), expected));
  EXPECT_TRUE(Same(Proposals(With(three_, "norm_before_residual", false)), expected));
  EXPECT_FALSE(Same(Proposals(With(three_, "feature_layers", {1, 2, 2})), expected));
  for (const char* name : {"midlayer.input_layernorm.weight", "midlayer.hidden_norm.weight", "norm.weight",
                           "fc.weight", "midlayer.self_attn.k_proj.weight", "lm_head.weight"}) {
    HeadFiles changed = three_;
    HeadTensor& tensor = changed.tensors.at(name);
    tensor = testing::Random(tensor.shape, 0.3f, random_);
    EXPECT_FALSE(Same(Proposals(changed), expected)) << name;
  }
}

TEST_F(Eagle3Layout, ThatIsNoneIsRefused) {
  const auto error = [&](const char* field, const nlohmann::json& value) {
    return ErrorOf({With(three_, field, value)});
  };
  const std::string config = "PATH/config.json: ", list = " is no ascending list of numbers in [1, 2]: ";
  EXPECT_EQ(error("feature_layers", {0, 1, 2}), config + "feature_layers" + list + "[0,1,2]");
  EXPECT_EQ(error("feature_layers", {1, 2, 3}), config + "feature_layers" + list + "[1,2,3]");
  EXPECT_EQ(error("feature_layers", {2, 1}), config + "feature_layers" + list + "[2,1]");
  EXPECT_EQ(error("feature_layers", nlohmann::json::array()), config + "feature_layers" + list + "[]");
  EXPECT_EQ(error("feature_layers", 2), config + "feature_layers" + list + "2");
  HeadFiles missing = three_;
  missing.config.erase("feature_layers");
  EXPECT_EQ(ErrorOf({missing}), config + "feature_layers is missing, for a target of 2 layers");
  EXPECT_EQ(error("eagle_version", 2), config + "eagle_version is 2: its layer is that of version 1");
  EXPECT_EQ(error("attention_bias", true), config + "attention_bias is true: biases are not computed");
  EXPECT_EQ(error("hidden_act", "gelu"), config + "hidden_act is not \"silu\": \"gelu\"");
  for (const auto& [name, shape] : {std::pair("fc.weight", std::vector<int64_t>{64, 128}),
                                    {"midlayer.self_attn.q_proj.weight", {64, 64}},
                                    {"midlayer.hidden_norm.weight", {63}},
                                    {"lm_head.weight", {256, 64}}}) {
    HeadFiles changed = three_;
    changed.tensors[name] = Filled(shape, 0);
    EXPECT_THAT(ErrorOf({changed}),
                ::testing::StartsWith(absl::StrCat("PATH/model.safetensors: tensor ", name, ": shape ")));
    changed.tensors.erase(name);
    // Without a head of its own, it has the target's.
    if (name == std::string("lm_head.weight")) continue;
    EXPECT_EQ(ErrorOf({changed}), absl::StrCat("PATH/model.safetensors: no tensor ", name));
  }
}

// The same weights as vLLM's "speculators" saves them.
class Speculators : public Eagle3Layout {
 protected:
  static void Rename(HeadFiles& files, const std::string& from, const std::string& to) {
    std::map<std::string, HeadTensor> renamed;
    for (auto& [name, tensor] : files.tensors) {
      const bool begins = name.starts_with(from);
      renamed[begins ? to + name.substr(from.size()) : name] = std::move(tensor);
    }
    files.tensors = std::move(renamed);
  }
  static HeadFiles Saved(HeadFiles files, const char* type) {
    nlohmann::json layer = Published(files).config;
    for (const char* field : {"draft_vocab_size", "feature_layers", "eagle_version"}) layer.erase(field);
    files.config = {{"architectures", {"EagleSpeculator"}},
                    {"speculators_model_type", type},
                    {"speculators_version", "0.1.0.dev42"},
                    {"speculators_config", {{"algorithm", type}}},
                    {"transformer_layer_config", layer}};
    return files;
  }
  static HeadFiles SavedEagle(HeadFiles files) {
    files = Saved(std::move(files), "eagle");
    files.config["transformer_layer_architecture"] = "LlamaDecoderLayer";
    files.config["layernorms"] = false;
    files.config["fusion_bias"] = files.tensors.contains("fc.bias");
    Rename(files, "fc.", "fusion_fc.");
    Rename(files, "layers.0.", "transformer.");
    return files;
  }
  static HeadFiles SavedEagle3(HeadFiles files, bool norm_before_residual) {
    files = Saved(std::move(files), "eagle3");
    files.config["norm_before_residual"] = norm_before_residual;
    files.config["draft_vocab_size"] = kHeadVocab / 2;
    files.config["target_hidden_size"] = nullptr;
    files.config["eagle_aux_hidden_state_layer_ids"] = {1, 1, 2};
    files.integers["t2d"] = std::vector<int64_t>(kHeadVocab, 0);
    Rename(files, "midlayer.", "layers.0.");
    return files;
  }
};

TEST_F(Speculators, OfEagleAreRead) {
  EXPECT_TRUE(Same(Proposals(SavedEagle(own_)), Proposals(own_)));
  HeadFiles biased = own_;
  biased.tensors["fc.bias"] = testing::Random({kHeadHidden}, 1, random_);
  EXPECT_TRUE(Same(Proposals(SavedEagle(biased)), Proposals(biased)));
  EXPECT_FALSE(Same(Proposals(SavedEagle(biased)), Proposals(own_)));
}

TEST_F(Speculators, OfEagle3AreRead) {
  for (const bool before : {false, true}) {
    EXPECT_TRUE(Same(Proposals(SavedEagle3(three_, before)),
                     Proposals(With(three_, "norm_before_residual", before))));
  }
}

TEST_F(Speculators, ThatAreNotComputedAreRefused) {
  const HeadFiles one = SavedEagle(own_), three = SavedEagle3(three_, true);
  const std::string config = "PATH/config.json: ";
  EXPECT_EQ(ErrorOf({With(one, "layernorms", true)}),
            config + "layernorms is true: these norms are not computed");
  EXPECT_EQ(ErrorOf({With(one, "transformer_layer_architecture", "Qwen3DecoderLayer")}),
            config + "transformer_layer_architecture is not \"LlamaDecoderLayer\": \"Qwen3DecoderLayer\"");
  EXPECT_EQ(ErrorOf({With(one, "fusion_bias", true)}), "PATH/model.safetensors: no tensor fusion_fc.bias");
  EXPECT_EQ(ErrorOf({With(one, "speculators_model_type", "mlp")}),
            config + "speculators_model_type is none of \"eagle\" and \"eagle3\": \"mlp\"");
  EXPECT_EQ(ErrorOf({With(three, "norm_before_residual", nullptr)}),
            config + "norm_before_residual is missing");
  EXPECT_EQ(ErrorOf({With(three, "norm_before_fc", true)}),
            config + "norm_before_fc is true: this norm is not computed");
  EXPECT_EQ(ErrorOf({With(three, "target_hidden_size", 128)}),
            config + "target_hidden_size 128, but the target's is 64");
  EXPECT_EQ(ErrorOf({With(three, "transformer_layer_config", nullptr)}),
            config + "transformer_layer_config is missing");
  EXPECT_EQ(ErrorOf({With(three, "transformer_layer_config", 1)}),
            config + "transformer_layer_config is not an object");
  for (const auto& [field, value, error] :
       {std::tuple("num_hidden_layers", nlohmann::json(2), "num_hidden_layers is not 1"),
        {"hidden_size", 128, "hidden_size 128, but the target's is 64"},
        {"vocab_size", 255, "vocab_size 255, but the target's is 256"},
        {"mlp_bias", true, "mlp_bias is true: biases are not computed"},
        {"rms_norm_eps", nullptr, "rms_norm_eps is missing"}}) {
    HeadFiles changed = three;
    changed.config["transformer_layer_config"][field] = value;
    EXPECT_EQ(ErrorOf({changed}), config + "transformer_layer_config." + error);
  }
}

// Every third token, which are the tokens that the draft knows.
std::vector<TokenId> SomeTokens() {
  std::vector<TokenId> tokens;
  for (TokenId token = 1; token < kHeadVocab; token += 3) tokens.push_back(token);
  return tokens;
}
testing::HeadTensor RowsOf(const testing::HeadTensor& matrix, const std::vector<TokenId>& rows) {
  testing::HeadTensor some{{static_cast<int64_t>(rows.size()), kHeadHidden}, {}};
  for (const TokenId row : rows) {
    const auto first = matrix.values.begin() + std::ptrdiff_t{row} * kHeadHidden;
    some.values.insert(some.values.end(), first, first + kHeadHidden);
  }
  return some;
}

class EagleVocabulary : public EagleLayout {
 protected:
  // Whether all drafted tokens, and all tokens with q above 0, are among these or, with `texts`, in the text
  // before.
  static bool AreOf(const std::vector<Proposal>& proposals, const std::vector<TokenId>& tokens,
                    const std::vector<std::vector<TokenId>>& texts = {}) {
    size_t seen = 0;
    for (size_t i = 0; i < proposals.size(); ++i) {
      const auto known = [&](TokenId token) {
        return std::ranges::binary_search(tokens, token) ||
               (!texts.empty() && std::ranges::count(texts[i], token) > 0);
      };
      for (const ProposalNode& node : proposals[i]) {
        if (!known(node.token)) return false;
        for (TokenId token = 0; token < kHeadVocab; ++token) {
          if (node.q(token) == 0) continue;
          ++seen;
          if (!known(token)) return false;
        }
      }
    }
    return seen > 0;
  }
};

TEST_F(EagleVocabulary, IsWhatCanBeProposed) {
  EXPECT_FALSE(AreOf(Proposals(own_), SomeTokens()));
  const HeadFiles some = testing::WithVocabulary(own_, SomeTokens());
  std::vector<std::vector<TokenId>> texts;
  const std::vector<Proposal> expected = ProposalsOf(some, ProposerKind::kEagle, {}, &texts);
  EXPECT_TRUE(AreOf(expected, SomeTokens(), texts));
  EXPECT_FALSE(AreOf(expected, SomeTokens())) << "tokens of the text can be proposed too";
  HeadFiles published = Published(some);
  EXPECT_TRUE(Same(Proposals(published), expected));
  published.config.erase("draft_vocab_size");
  EXPECT_TRUE(Same(Proposals(published), expected)) << "of the length of d2t";
  std::vector<TokenId> every(kHeadVocab);
  std::iota(every.begin(), every.end(), 0);
  EXPECT_TRUE(Same(Proposals(testing::WithVocabulary(own_, every)), Proposals(own_)));
}

// At temperature 1, one factor relates the first q of all tokens that have it to that of the whole head.
TEST_F(EagleVocabulary, TokensOfTheTextHaveTheLogitsOfTheWholeHead) {
  const std::vector<Proposal> whole = Proposals(own_);
  const std::vector<Proposal> some = Proposals(testing::WithVocabulary(own_, SomeTokens()));
  const std::vector<TokenId> tokens = SomeTokens();
  int of_head = 0, of_text = 0;
  for (size_t i = whole.size() / 2; i < whole.size(); ++i) {
    std::optional<double> factor;
    for (TokenId token = 0; token < kHeadVocab; ++token) {
      const double q = some[i][0].q(token), of_all = whole[i][0].q(token);
      if (q == 0 || of_all == 0) continue;
      ++(std::ranges::binary_search(tokens, token) ? of_head : of_text);
      if (!factor) factor = q / of_all;
      EXPECT_NEAR(q / of_all, *factor, 1e-3 * *factor) << token;
    }
  }
  EXPECT_GT(of_head, 0);
  EXPECT_GT(of_text, 0);
}

TEST_F(EagleVocabulary, MayHaveAHeadOfItsOwn) {
  HeadFiles some = testing::WithVocabulary(own_, SomeTokens());
  some.tensors["lm_head.weight"] = RowsOf(TargetHead(), SomeTokens());
  const std::vector<Proposal> expected = Proposals(some);
  EXPECT_TRUE(AreOf(expected, SomeTokens())) << "the target's embeddings are not its rows";
  some.tensors["lm_head.weight"] =
      testing::Random({static_cast<int64_t>(SomeTokens().size()), kHeadHidden}, 0.3f, random_);
  EXPECT_FALSE(Same(Proposals(some), expected));
  EXPECT_TRUE(AreOf(Proposals(some), SomeTokens()));
  HeadFiles whole = own_;
  whole.tensors["lm_head.weight"] = TargetHead();
  EXPECT_TRUE(Same(Proposals(whole), Proposals(own_)));
}

// Whatever a request asks for, a token that the draft does not know has q = 0 where another is left.
TEST_F(EagleVocabulary, StaysWhatItIsUnderEveryControl) {
  HeadFiles some = testing::WithVocabulary(own_, SomeTokens());
  some.tensors["lm_head.weight"] = RowsOf(TargetHead(), SomeTokens());
  SamplingParams loud, flat, allowed;
  loud.logit_bias = {{0, 100.0f}, {1, -100.0f}};
  loud.repetition_penalty = 0.01;
  loud.presence_penalty = -2;
  loud.frequency_penalty = -2;
  flat.top_k = kHeadVocab - 1;
  flat.top_p = 0.999;
  flat.min_p = 1e-6;
  for (TokenId token = 0; token < kHeadVocab; token += 2) allowed.allowed_ids.push_back(token);
  std::vector<TokenId> both;
  for (const TokenId token : SomeTokens()) {
    if (token % 2 == 0) both.push_back(token);
  }
  EXPECT_TRUE(AreOf(ProposalsOf(some, ProposerKind::kEagle, loud), SomeTokens()));
  EXPECT_TRUE(AreOf(ProposalsOf(some, ProposerKind::kEagle, flat), SomeTokens()));
  EXPECT_TRUE(AreOf(ProposalsOf(some, ProposerKind::kEagle, allowed), both));
  some.tensors.erase("lm_head.weight");
  for (const SamplingParams& params : {loud, flat}) {
    std::vector<std::vector<TokenId>> texts;
    const std::vector<Proposal> proposals = ProposalsOf(some, ProposerKind::kEagle, params, &texts);
    EXPECT_TRUE(AreOf(proposals, SomeTokens(), texts)) << "with tokens of the text";
  }
  // Where none is left, the proposed tokens are allowed all the same.
  SamplingParams others;
  others.allowed_ids = {0, 2, 3};
  EXPECT_TRUE(AreOf(ProposalsOf(some, ProposerKind::kEagle, others), others.allowed_ids));
}

TEST_F(EagleVocabulary, ThatIsNoneIsRefused) {
  const HeadFiles some = testing::WithVocabulary(own_, {3, 5, 255});
  const auto error = [&](const std::vector<TokenId>& tokens) {
    return ErrorOf({testing::WithVocabulary(own_, tokens)});
  };
  const std::string tensor = "PATH/model.safetensors: tensor d2t: ";
  EXPECT_EQ(error({3, 5, 256}), tensor + "offset 254 of token 2 leads out of [0, 256)");
  EXPECT_EQ(error({-1, 5}), tensor + "offset -1 of token 0 leads out of [0, 256)");
  EXPECT_EQ(error({3, 5, 5}), tensor + "token 2 is 5, after 5: they must ascend");
  EXPECT_EQ(error({3, 5, 4}), tensor + "token 2 is 4, after 5: they must ascend");
  EXPECT_EQ(ErrorOf({With(some, "draft_vocab_size", 4)}), tensor + "shape [3], expected [4]");
  EXPECT_EQ(ErrorOf({With(some, "draft_vocab_size", 257)}),
            "PATH/config.json: draft_vocab_size is out of range: 257");
  EXPECT_EQ(ErrorOf({With(own_, "draft_vocab_size", 255)}), "PATH/model.safetensors: no tensor d2t");
  HeadFiles empty = testing::WithVocabulary(own_, {});
  empty.config.erase("draft_vocab_size");
  EXPECT_EQ(ErrorOf({empty}), tensor + "names no token");
  HeadFiles floats = some;
  floats.integers.clear();
  floats.tensors["d2t"] = Filled({3}, 0);
  EXPECT_EQ(ErrorOf({floats}), tensor + "dtype F32, expected I64");
  HeadFiles head = some;
  head.tensors["lm_head.weight"] = Filled({4, kHeadHidden}, 0);
  EXPECT_EQ(ErrorOf({head}),
            "PATH/model.safetensors: tensor lm_head.weight: shape [4, 64], expected [3, 64]");
}

}  // namespace
}  // namespace outrider
