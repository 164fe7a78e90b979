// The shipped heads, and small ones, propose what transformers and plain tensors compute from the same files
// (scripts/goldens/heads.py). LayerSkip proposes the tokens of a target with its first layers only.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/temporary_folder.h"
#include "tests/unit/hidden_testing.h"
#include "worker_trees_testing.h"

namespace outrider {
namespace {

using testing::AskTree;
using testing::EngineUnderTest;
using testing::TreeItem;
using testing::TreeReply;

constexpr char kModel[] = "models/tiny-target";
constexpr char kHeads[] = "models/tiny-heads/";

struct Heads {
  std::string target, folder, goldens;
  std::string name;  // of its rows in the goldens
  ProposerKind kind;
};

Heads Shipped(const std::string& name) {
  return {kModel, kHeads + name, "tests/data/engine/heads.json", name, *ProposerFromName(name)};
}
// EAGLE or EAGLE-3 with a vocabulary of its own, and the target's head or one of its own.
Heads Small(const std::string& name) {
  return {"tests/data/engine/gqa3-sharded", "tests/data/heads/" + name, "tests/data/heads/goldens.json", name,
          ProposerKind::kEagle};
}

std::unique_ptr<Worker> Target(const EngineUnderTest& engine, const std::string& model,
                               std::vector<std::string> heads) {
  RunnerOptions options = engine.Options();
  options.model_dir = model;
  options.heads = std::move(heads);
  auto runner = Runner::Load(options);
  EXPECT_TRUE(runner.ok()) << runner.status();
  if (!runner.ok()) return nullptr;
  return std::make_unique<Worker>(*std::move(runner), std::make_unique<RejectionSampler>(), WorkerOptions(),
                                  Worker::Hooks());
}

// The engines that round as little as the goldens.
std::vector<EngineUnderTest> ExactEngines() {
  std::vector<EngineUnderTest> engines = testing::EnginesUnderTest();
  std::erase_if(engines, [](const EngineUnderTest& engine) { return engine.dtype != "float32"; });
  return engines;
}

class ProposersGolden : public ::testing::TestWithParam<std::tuple<EngineUnderTest, Heads>> {};

// Compares the tokens at temperature 0, and the differences between the best tokens' logits at 1.
TEST_P(ProposersGolden, ProposesWhatThePapersCompute) {
  const auto& [engine, heads] = GetParam();
  const auto& [target, folder, goldens, name, kind] = heads;
  const std::unique_ptr<Worker> worker = Target(engine, target, {folder});
  ASSERT_NE(worker, nullptr);
  std::ifstream file(goldens);
  uint64_t id = 0;
  for (const nlohmann::json& golden : nlohmann::json::parse(file)) {
    const auto tokens = golden.at("tokens").get<std::vector<TokenId>>();
    const nlohmann::json& rows = golden.at(name);
    for (const double temperature : {0.0, 1.0}) {
      SequenceParams params{.prompt_length = 1, .draft_top_n = 5, .proposer = kind};
      params.key.seed = temperature > 0 ? 1 : 0;
      params.sampling.temperature = 0;
      params.draft_temperature = temperature;
      VerifyWork work;
      work.propose = ProposalRequest{.draft_tokens = static_cast<int>(rows.size())};
      const TreeReply reply = AskTree(
          *worker, TreeItem(++id, 1, tokens, 0, std::make_shared<SequenceParams>(params), std::move(work)));
      ASSERT_TRUE(reply.status.ok()) << reply.status;
      EXPECT_EQ(reply.verdict->token, golden.at("y").get<TokenId>());
      ASSERT_EQ(reply.proposal.size(), rows.size());
      // Beyond the first token EAGLE's rows depend on what was drawn.
      const size_t comparable = temperature > 0 && kind == ProposerKind::kEagle ? 1 : rows.size();
      for (size_t i = 0; i < comparable; ++i) {
        const auto ids = rows[i].at("ids").get<std::vector<TokenId>>();
        const auto logits = rows[i].at("logits").get<std::vector<double>>();
        const ProposalNode& node = reply.proposal[i];
        if (temperature == 0 || kind == ProposerKind::kBlockwise) {
          EXPECT_EQ(node.token, ids[0]) << name << " " << i;
          EXPECT_EQ(node.q.form, Distribution::Form::kPointMass);
          continue;
        }
        ASSERT_EQ(node.q.ids.size(), ids.size());
        for (size_t t = 0; t < ids.size(); ++t) {
          const auto at = std::find(node.q.ids.begin(), node.q.ids.end(), ids[t]) - node.q.ids.begin();
          const auto best = std::find(node.q.ids.begin(), node.q.ids.end(), ids[0]) - node.q.ids.begin();
          ASSERT_LT(static_cast<size_t>(at), node.q.ids.size()) << name << " " << i;
          const double ratio = std::log(node.q.weights[static_cast<size_t>(at)]) -
                               std::log(node.q.weights[static_cast<size_t>(best)]);
          EXPECT_NEAR(ratio, logits[t] - logits[0], 2e-3) << name << " " << i << " " << t;
        }
      }
    }
  }
}

// The length of a proposal does not change its first tokens.
TEST_P(ProposersGolden, AShortProposalIsTheBeginningOfALongOne) {
  const auto& [engine, heads] = GetParam();
  const auto& [target, folder, goldens, name, kind] = heads;
  const std::unique_ptr<Worker> worker = Target(engine, target, {folder});
  ASSERT_NE(worker, nullptr);
  SequenceParams params{.prompt_length = 1, .draft_top_n = 5, .proposer = kind};
  params.sampling.temperature = 0;
  std::ifstream file(goldens);
  uint64_t id = 0;
  for (const nlohmann::json& golden : nlohmann::json::parse(file)) {
    const nlohmann::json& rows = golden.at(name);
    for (size_t length = 1; length < rows.size(); ++length) {
      VerifyWork work;
      work.propose = ProposalRequest{.draft_tokens = static_cast<int>(length)};
      const TreeReply reply =
          AskTree(*worker, TreeItem(++id, 1, golden.at("tokens").get<std::vector<TokenId>>(), 0,
                                    std::make_shared<SequenceParams>(params), std::move(work)));
      ASSERT_EQ(reply.proposal.size(), length);
      for (size_t i = 0; i < length; ++i) {
        EXPECT_EQ(reply.proposal[i].token, rows[i].at("ids")[0].get<TokenId>()) << length << " " << i;
      }
    }
  }
}

// A drafted token that was accepted is followed as if it had been sent.
TEST_P(ProposersGolden, AnAcceptedTokenIsFollowedLikeACommittedOne) {
  const auto& [engine, heads] = GetParam();
  const auto& [target, folder, goldens, name, kind] = heads;
  const std::unique_ptr<Worker> worker = Target(engine, target, {folder});
  ASSERT_NE(worker, nullptr);
  SequenceParams params{.prompt_length = 1, .draft_top_n = 5, .proposer = kind};
  params.sampling.temperature = 0;
  const auto shared = std::make_shared<SequenceParams>(params);
  std::ifstream file(goldens);
  uint64_t id = 0;
  for (const nlohmann::json& golden : nlohmann::json::parse(file)) {
    auto tokens = golden.at("tokens").get<std::vector<TokenId>>();
    const TokenId next = golden.at("y").get<TokenId>();
    VerifyWork drafted;
    drafted.propose = ProposalRequest{.draft_tokens = 2};
    VerifyWork sent = drafted;
    AppendToChain(next, {.form = Distribution::Form::kPointMass, .ids = {next}, .total = 1},
                  drafted.proposal);
    const TreeReply reply = AskTree(*worker, TreeItem(++id, 1, tokens, 0, shared, std::move(drafted)));
    ASSERT_EQ(reply.verdict->path.size(), 1u);
    tokens.push_back(next);
    const TreeReply wanted = AskTree(*worker, TreeItem(++id, 1, tokens, 0, shared, std::move(sent)));
    EXPECT_EQ(reply.verdict->token, wanted.verdict->token);
    ASSERT_EQ(reply.proposal.size(), wanted.proposal.size());
    for (size_t i = 0; i < wanted.proposal.size(); ++i) {
      EXPECT_EQ(reply.proposal[i].token, wanted.proposal[i].token) << name << " " << i;
    }
  }
}

std::string NameOfCase(const ::testing::TestParamInfo<std::tuple<EngineUnderTest, Heads>>& info) {
  return std::get<0>(info.param).name() + "_" + std::get<1>(info.param).name;
}

INSTANTIATE_TEST_SUITE_P(OfThePair, ProposersGolden,
                         ::testing::Combine(::testing::ValuesIn(ExactEngines()),
                                            ::testing::Values(Shipped("medusa"), Shipped("blockwise"),
                                                              Shipped("eagle"), Shipped("pass"))),
                         NameOfCase);
INSTANTIATE_TEST_SUITE_P(Small, ProposersGolden,
                         ::testing::Combine(::testing::ValuesIn(ExactEngines()),
                                            ::testing::Values(Small("eagle"), Small("eagle3"))),
                         NameOfCase);

class LayerSkipGolden : public ::testing::TestWithParam<EngineUnderTest> {
 protected:
  // The verdict after the tokens at temperature 0, and a proposal of the target's own if `kind` is given.
  static TreeReply Ask(Worker& worker, uint64_t id, const std::vector<TokenId>& tokens,
                       std::optional<ProposerKind> kind, int draft_tokens) {
    SequenceParams params{.prompt_length = 1, .draft_top_n = 5, .proposer = kind};
    params.sampling.temperature = 0;
    VerifyWork work;
    if (kind) work.propose = ProposalRequest{.draft_tokens = draft_tokens};
    return AskTree(worker,
                   TreeItem(id, 1, tokens, 0, std::make_shared<SequenceParams>(params), std::move(work)));
  }
};

TEST_P(LayerSkipGolden, ProposesWhatTheFirstLayersSay) {
  constexpr int kTokens = 4;
  const TemporaryFolder folder;
  std::filesystem::copy(kModel, folder.path());
  nlohmann::json config = testing::ReadJson(std::string(kModel) + "/config.json");
  config["num_hidden_layers"] =
      testing::ReadJson(std::string(kHeads) + "layer_skip/config.json")["exit_layer"];
  std::ofstream(folder.path() + "/config.json") << config;
  const std::unique_ptr<Worker> first_layers = Target(GetParam(), folder.path(), {});
  const std::unique_ptr<Worker> whole = Target(GetParam(), kModel, {std::string(kHeads) + "layer_skip"});
  ASSERT_TRUE(first_layers != nullptr && whole != nullptr);
  std::ifstream file("tests/data/engine/heads.json");
  uint64_t id = 0;
  for (const nlohmann::json& golden : nlohmann::json::parse(file)) {
    auto tokens = golden.at("tokens").get<std::vector<TokenId>>();
    const TreeReply reply = Ask(*whole, ++id, tokens, ProposerKind::kLayerSkip, kTokens);
    ASSERT_TRUE(reply.status.ok()) << reply.status;
    ASSERT_EQ(reply.proposal.size(), static_cast<size_t>(kTokens));
    tokens.push_back(reply.verdict->token);
    for (const ProposalNode& node : reply.proposal) {
      const TreeReply next = Ask(*first_layers, ++id, tokens, std::nullopt, 0);
      ASSERT_TRUE(next.status.ok()) << next.status;
      EXPECT_EQ(node.token, next.verdict->token);
      tokens.push_back(node.token);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, LayerSkipGolden, ::testing::ValuesIn(ExactEngines()),
                         [](const auto& info) { return info.param.name(); });

}  // namespace
}  // namespace outrider
