// The q of the target's own proposals is the distribution that their tokens were sampled from.
#include <map>

#include "heads_testing.h"
#include "some_of.h"
#include "tests/slow/spec_chi_square.h"
#include "worker_trees_testing.h"

namespace outrider {
namespace {

using testing::TreeReply;

constexpr double kNotByChance = 1e-3;
constexpr double kCertainlyWrong = 1e-12;
constexpr int kSeeds = 1200;

// The kinds of proposers that sample; blockwise parallel decoding does not.
class ProposalsLaw : public ::testing::TestWithParam<ProposerKind> {
 protected:
  using Cell = std::vector<TokenId>;
  // How often tokens were drawn, and how often they should have been by the q that came with them.
  struct Drawn {
    std::map<Cell, int> observed;
    std::map<Cell, double> expected;
  };

  ProposalsLaw() {
    RunnerOptions load = testing::TreeModel(64, 16, 64);
    load.heads = heads_.paths();
    absl::StatusOr<std::unique_ptr<Runner>> runner = Runner::Load(load);
    EXPECT_TRUE(runner.ok()) << runner.status();
    worker_ = std::make_unique<Worker>(*std::move(runner), std::make_unique<RejectionSampler>(),
                                       WorkerOptions(), Worker::Hooks());
  }

  // Proposes after the same text and, since the target takes its likeliest token, the same verdict.
  Proposal Propose(int seed, double draft_temperature, const std::optional<TreeShape>& tree) {
    SequenceParams params{
        .prompt_length = 1, .draft_top_n = 5, .draft_temperature = draft_temperature, .proposer = GetParam()};
    params.sampling.temperature = 0;
    params.key.seed = static_cast<uint64_t>(seed);
    VerifyWork verify;
    verify.propose = ProposalRequest{.draft_tokens = 2, .tree = tree};
    WorkItem item = testing::TreeItem(++last_id_, 1, testing::Text(9), 0,
                                      std::make_shared<SequenceParams>(params), std::move(verify));
    const SequenceId id = item.id;
    const TreeReply reply = testing::AskTree(*worker_, std::move(item));
    EXPECT_TRUE(reply.status.ok()) << reply.status;
    worker_->Release(id);
    return reply.proposal;
  }

  // Draws pairs of tokens: one after the other on a chain, or siblings. q of the second knows the first.
  Drawn Draw(double draft_temperature, const std::optional<TreeShape>& tree) {
    Drawn drawn;
    double total = 0;
    for (int seed = 0; seed < kSeeds; ++seed) {
      const Proposal proposal = Propose(seed, draft_temperature, tree);
      EXPECT_GE(proposal.size(), 2u);
      if (proposal.size() < 2) return {};
      const Cell cell = {proposal[0].token, proposal[1].token};
      ++drawn.observed[cell];
      for (const TokenId second : proposal[1].q.ids) {
        const double probability = proposal[0].q(cell[0]) * proposal[1].q(second);
        if (drawn.expected.try_emplace({cell[0], second}, probability).second) total += probability;
      }
    }
    drawn.expected[{-1}] = std::max(0.0, 1 - total);  // pairs after a first token that was never drawn
    return drawn;
  }

  const testing::HeadFolders heads_{testing::HeadsOfAllKinds(9)};
  std::unique_ptr<Worker> worker_;
  uint64_t last_id_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Sampled, ProposalsLaw,
                         ::testing::Values(ProposerKind::kMedusa, ProposerKind::kEagle,
                                           ProposerKind::kLayerSkip, ProposerKind::kPass),
                         [](const auto& info) { return std::string(NameOf(info.param)); });

TEST_P(ProposalsLaw, OfAChainIsItsQ) {
  const Drawn drawn = Draw(1, std::nullopt);
  EXPECT_GT(drawn.observed.size(), 3u);
  EXPECT_GT(ChiSquareP(drawn.observed, drawn.expected), kNotByChance);
}

TEST_P(ProposalsLaw, OfSiblingsIsTheirQWithoutReplacement) {
  const Drawn drawn = Draw(1, *ParseTreeShape("2"));
  EXPECT_GT(drawn.observed.size(), 3u);
  EXPECT_GT(ChiSquareP(drawn.observed, drawn.expected), kNotByChance);
}

// The negative control: the likeliest token is taken, or drawn at half the temperature, and q is the softmax.
TEST_P(ProposalsLaw, AnotherQThanWhatWasSampledFromIsNoticed) {
  if (SomeOf(kSeeds) < kSeeds) GTEST_SKIP() << "what is noticed is numbers, the same under a sanitizer";
  for (const std::optional<TreeShape>& tree : {std::optional<TreeShape>(), {*ParseTreeShape("2")}}) {
    const Drawn reported = Draw(1, tree);
    for (const double temperature : {0.0, 0.5}) {
      EXPECT_LT(ChiSquareP(Draw(temperature, tree).observed, reported.expected), kCertainlyWrong);
    }
  }
}

}  // namespace
}  // namespace outrider
