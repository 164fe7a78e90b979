// Folders of heads: the layouts that others publish, and those that are refused.
#include "changed_model.h"
#include "heads_load_testing.h"

namespace outrider {
namespace {

using testing::EagleFiles;
using testing::ErrorOf;
using testing::Filled;
using ::testing::HasSubstr;
using testing::HeadFiles;
using testing::HeadFolders;
using testing::kHeadHidden;
using testing::kHeadVocab;
using testing::LayerSkipFiles;
using testing::LookAheadFiles;
using testing::MedusaFiles;
using testing::ProposalsOf;
using testing::Same;
using ::testing::StartsWith;
using testing::TargetHead;
using testing::With;

class Medusa : public ::testing::Test {
 protected:
  static std::vector<Proposal> Proposals(const HeadFiles& files) {
    return ProposalsOf(files, ProposerKind::kMedusa);
  }
  // The layout that FasterDecoding publishes.
  static HeadFiles Published(HeadFiles files, const std::string& prefix = "") {
    files.config.erase("proposer");
    files.config["base_model_name_or_path"] = "somebody/target";
    files.config["transformers_version"] = "4.34.1";
    std::map<std::string, testing::HeadTensor> tensors;
    for (auto& [name, tensor] : files.tensors) tensors[prefix + name] = std::move(tensor);
    files.tensors = std::move(tensors);
    return files;
  }
  std::mt19937 random_{3};
  const HeadFiles one_ = MedusaFiles(3, 1, random_);
};

TEST_F(Medusa, OfFasterDecodingIsRead) {
  const std::vector<Proposal> expected = Proposals(one_);
  EXPECT_TRUE(Same(Proposals(Published(one_)), expected));
  EXPECT_TRUE(Same(Proposals(Published(one_, "medusa_head.")), expected));
  EXPECT_FALSE(Same(Proposals(Published(MedusaFiles(3, 1, random_))), expected)) << "other numbers";
}

TEST_F(Medusa, MayHaveOutputsOfItsOwn) {
  const std::vector<Proposal> expected = Proposals(one_);
  HeadFiles own = one_;
  for (int i = 0; i < 3; ++i) own.tensors[absl::StrCat(i, ".1.weight")] = TargetHead();
  EXPECT_TRUE(Same(Proposals(Published(own)), expected));
  EXPECT_TRUE(Same(Proposals(Published(own, "medusa_head.")), expected));
  own.tensors["1.1.weight"] = testing::Random({kHeadVocab, kHeadHidden}, 0.3f, random_);
  const std::vector<Proposal> found = Proposals(own);
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(testing::BeginsWith(found[i], {expected[i][0]}));
    EXPECT_NE(found[i][1].token, expected[i][1].token);
  }
}

TEST_F(Medusa, MayHaveSeveralLayers) {
  const HeadFiles two = MedusaFiles(3, 2, random_);
  HeadFiles first = two, none = two;
  first.config["medusa_num_layers"] = 1;
  for (int i = 0; i < 3; ++i) {
    // silu(0) adds nothing.
    none.tensors[absl::StrCat(i, ".1.linear.weight")] = Filled({kHeadHidden, kHeadHidden}, 0);
    none.tensors[absl::StrCat(i, ".1.linear.bias")] = Filled({kHeadHidden}, 0);
  }
  EXPECT_TRUE(Same(Proposals(Published(none, "medusa_head.")), Proposals(first)));
  EXPECT_FALSE(Same(Proposals(two), Proposals(first)));
  HeadFiles own = two;
  for (int i = 0; i < 3; ++i) own.tensors[absl::StrCat(i, ".2.weight")] = TargetHead();
  EXPECT_TRUE(Same(Proposals(Published(own)), Proposals(two)));
}

class HeadsAreRefused : public ::testing::Test {
 protected:
  std::mt19937 random_{5};
  const HeadFiles medusa_ = MedusaFiles(2, 1, random_), blockwise_ = testing::BlockwiseFiles(2, 48, random_),
                  eagle_ = EagleFiles(random_), pass_ = LookAheadFiles(3, random_);
};

TEST_F(HeadsAreRefused, WithATensorOfAnotherShape) {
  for (const auto& [files, name, shape] :
       {std::tuple(medusa_, "1.0.linear.weight", std::vector<int64_t>{64, 63}),
        {medusa_, "0.0.linear.bias", {32}},
        {medusa_, "1.1.weight", {255, 64}},
        {blockwise_, "0.0.weight", {47, 64}},
        {blockwise_, "1.2.bias", {48}},
        {eagle_, "fc.weight", {64, 64}},
        {eagle_, "fc.bias", {128}},
        {eagle_, "layers.0.self_attn.k_proj.weight", {64, 64}},
        {pass_, "lookahead.weight", {4, 64}}}) {
    HeadFiles changed = files;
    changed.tensors[name] = Filled(shape, 0);
    EXPECT_THAT(ErrorOf({changed}), StartsWith(absl::StrCat("PATH/model.safetensors: tensor ", name, ": ")));
  }
}

TEST_F(HeadsAreRefused, WithoutATensor) {
  for (const auto& [files, name] : {std::pair(medusa_, "1.0.linear.bias"),
                                    {blockwise_, "1.0.weight"},
                                    {eagle_, "fc.weight"},
                                    {eagle_, "layers.0.mlp.up_proj.weight"},
                                    {pass_, "lookahead.weight"}}) {
    HeadFiles changed = files;
    changed.tensors["nobody.weight"] = Filled({1}, 0);
    changed.tensors.erase(name);
    EXPECT_EQ(ErrorOf({changed}), absl::StrCat("PATH/model.safetensors: no tensor ", name));
  }
}

TEST_F(HeadsAreRefused, ForAnotherTarget) {
  const absl::StatusOr<SafeTensors> target = SafeTensors::Open(testing::kTreeModel);
  ASSERT_TRUE(target.ok()) << target.status();
  const std::string own = absl::StrCat(absl::Hex(target->Hash(), absl::kZeroPad16));
  for (const HeadFiles& files : {medusa_, blockwise_, eagle_, LayerSkipFiles(1), pass_}) {
    EXPECT_EQ(ErrorOf({With(files, "target_weights_hash", "0123456789abcdef")}),
              absl::StrCat("PATH/config.json: trained for a target with the weights 0123456789abcdef, but "
                           "those of tests/data/engine/mha-float32 are ",
                           own));
    const HeadFolders folders({With(files, "target_weights_hash", own)});
    EXPECT_TRUE(testing::LoadHeads(folders.paths()).ok());
    EXPECT_EQ(ErrorOf({With(files, "hidden_size", 128)}),
              "PATH/config.json: hidden_size 128, but the target's is 64");
    EXPECT_EQ(ErrorOf({With(files, "vocab_size", 255)}),
              "PATH/config.json: vocab_size 255, but the target's is 256");
  }
}

TEST_F(HeadsAreRefused, OfNoKnownKindOrTwiceOfOne) {
  const std::string kinds = "must be one of medusa, blockwise, eagle, layer_skip, pass";
  EXPECT_EQ(ErrorOf({With(medusa_, "proposer", "hydra")}), "PATH/config.json: proposer " + kinds);
  EXPECT_EQ(ErrorOf({HeadFiles{{{"hidden_size", 64}}}}), "PATH/config.json: proposer " + kinds);
  for (const nlohmann::json& layers : {nlohmann::json(2), nlohmann::json("1"), nlohmann::json()}) {
    HeadFiles model = With(eagle_, "num_hidden_layers", layers);
    model.config.erase("proposer");
    EXPECT_EQ(ErrorOf({model}), "PATH/config.json: proposer " + kinds);
  }
  EXPECT_EQ(ErrorOf({medusa_, LayerSkipFiles(1), MedusaFiles(3, 1, random_)}),
            "--heads PATH: there is another medusa");
}

TEST_F(HeadsAreRefused, WithFieldsOutOfRange) {
  for (const auto& [files, field, value] : {std::tuple(LayerSkipFiles(1), "exit_layer", 0),
                                            {LayerSkipFiles(1), "exit_layer", 2},
                                            {medusa_, "medusa_num_heads", 0},
                                            {medusa_, "medusa_num_layers", 65},
                                            {blockwise_, "num_heads", 65},
                                            {blockwise_, "intermediate_size", 47},
                                            {eagle_, "intermediate_size", 95},
                                            {eagle_, "num_attention_heads", 0},
                                            {eagle_, "num_key_value_heads", 3},
                                            {eagle_, "head_dim", 15},
                                            {eagle_, "rms_norm_eps", 0},
                                            {pass_, "lookahead_tokens", 0},
                                            {pass_, "lookahead_tokens", 65}}) {
    EXPECT_THAT(ErrorOf({With(files, field, value)}),
                StartsWith(absl::StrCat("PATH/config.json: ", field, " ")));
  }
  HeadFiles narrow = With(eagle_, "num_attention_heads", 2 * kHeadHidden);
  narrow.config.erase("head_dim");
  EXPECT_EQ(ErrorOf({narrow}), "PATH/config.json: head_dim must be even, at least 2");
  HeadFiles fewer = LookAheadFiles(3, random_);
  fewer.config["lookahead_tokens"] = 2;
  EXPECT_THAT(ErrorOf({fewer}), StartsWith("PATH/model.safetensors: tensor lookahead.weight: "));
}

TEST_F(HeadsAreRefused, WithoutFiles) {
  const TemporaryFolder empty;
  EXPECT_THAT(ErrorOf({empty.path()}, absl::StatusCode::kNotFound), StartsWith("PATH/config.json: "));
  HeadFiles config = medusa_;
  config.tensors.clear();
  const HeadFolders folders({config});
  EXPECT_THAT(ErrorOf(folders.paths(), absl::StatusCode::kNotFound), HasSubstr("PATH"));
  std::ofstream(folders.paths()[0] + "/config.json") << "[1]";
  EXPECT_THAT(ErrorOf(folders.paths()), StartsWith("PATH/config.json: "));
}

// An engine without hidden states refuses them before it reads them.
TEST_F(HeadsAreRefused, WhereThereAreNoHiddenStates) {
  const HeadFolders folders({medusa_});
  RunnerOptions options = testing::TreeModel(64, 16, 64);
  options.heads = folders.paths();
  const testing::ChangedBackend backend([](LogitsView) { return absl::OkStatus(); });
  const absl::Status status = Runner::Load(options, backend).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), absl::StrCat("--heads ", folders.paths()[0],
                                           ": needs --device cpu or --engine torch, in one process"));
}

}  // namespace
}  // namespace outrider
