// The drafters of the coordinator: what they propose from what, and which of them learn the verdict.
#include <gmock/gmock.h>

#include <fstream>
#include <random>

#include "bench/temporary_folder.h"
#include "common/net/asio.h"
#include "common/rpc/convert.h"
#include "common/spec/verify.h"
#include "coordinator/api/parse_request.h"
#include "coordinator/drafters/auto_drafter.h"
#include "coordinator/drafters/copy_drafter.h"
#include "coordinator/drafters/ngram_drafter.h"
#include "coordinator/drafters/row_drafter.h"
#include "tests/unit/test_tokenizer.h"

namespace outrider {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Lt;
using ::testing::Pair;
using ::testing::SizeIs;

using Form = Distribution::Form;
using Tokens = std::vector<TokenId>;

struct Options {
  v1::Rule rule = v1::RULE_TOKEN;
  uint64_t seed = 1;
  float temperature = 1;
  uint32_t draft_top_n = 0;
};

Generation Sequence(Tokens prompt, const Options& options = {}) {
  Request request;
  request.params.set_rule(options.rule);
  request.params.set_seed(options.seed);
  request.params.set_draft_top_n(options.draft_top_n);
  request.params.mutable_sampling()->set_temperature(options.temperature);
  request.prompt = std::move(prompt);
  request.max_tokens = 10'000;
  return Generation(std::move(request), &TestTokenizer(), Clock::now());
}

// A round that rejects every drafted token and ends in `token`.
void Reject(Generation& generation, const Proposal& draft, TokenId token) {
  Verdict verdict;
  verdict.token = token;
  if (!draft.empty()) verdict.kind = Verdict::Kind::kCorrected;
  generation.Commit(draft, verdict);
}

Tokens TokensOf(const Proposal& proposal) {
  Tokens tokens;
  for (const ProposalNode& node : proposal) tokens.push_back(node.token);
  return tokens;
}

Tokens Ngram(const Tokens& committed, int k = 1, const NgramOptions& options = {}) {
  return TokensOf(NgramDrafter(options).Draft(Sequence(committed), k));
}

Tokens Copy(const Tokens& committed, int k = 1, const CopyOptions& options = {}) {
  return TokensOf(CopyDrafter(options).Draft(Sequence(committed), k));
}

Tokens RandomTokens(size_t count, TokenId vocab) {
  std::mt19937 random(7);
  Tokens tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(random() % static_cast<uint32_t>(vocab));
  return tokens;
}

TEST(NgramDrafter, ProposesTheMostFrequentContinuation) {
  EXPECT_THAT(Ngram({5, 1, 5, 2, 5, 1, 6, 5}), ElementsAre(1));
  EXPECT_THAT(Ngram({5, 1, 5, 2, 5, 1, 5, 2, 5, 2, 6, 5}), ElementsAre(2));
}

TEST(NgramDrafter, OfContinuationsThatTieTheMostRecentWins) {
  EXPECT_THAT(Ngram({5, 1, 6, 5, 2, 7, 5}), ElementsAre(2));
  EXPECT_THAT(Ngram({5, 2, 6, 5, 1, 7, 5}), ElementsAre(1));
}

TEST(NgramDrafter, TheLongestContextDecides) {
  EXPECT_THAT(Ngram({1, 2, 3, 9, 7, 3, 8, 5, 3, 8, 1, 2, 3}), ElementsAre(9));
  EXPECT_THAT(Ngram({1, 2, 3, 9, 7, 3, 8, 5, 3, 8, 4, 2, 3}), ElementsAre(9));
  EXPECT_THAT(Ngram({1, 2, 3, 9, 7, 3, 8, 5, 3, 8, 4, 4, 3}), ElementsAre(8));
  EXPECT_THAT(Ngram({1, 2, 3, 9, 7, 3, 8, 5, 3, 8, 1, 2, 3}, 1, {.max_context = 1}), ElementsAre(8));
}

TEST(NgramDrafter, ChainsFromTokenToTokenUpToItsLimitAndTheRounds) {
  const Tokens committed = {1, 2, 3, 4, 5, 6, 1};
  EXPECT_THAT(Ngram(committed, 2), ElementsAre(2, 3));
  EXPECT_THAT(Ngram(committed, 8), ElementsAre(2, 3, 4, 5));
  EXPECT_THAT(Ngram(committed, 8, {.max_tokens = 6}), ElementsAre(2, 3, 4, 5, 6, 1));
  EXPECT_THAT(Ngram(committed, 0), IsEmpty());
}

TEST(NgramDrafter, ProposesNothingWithoutAMatch) {
  EXPECT_THAT(Ngram({1}, 4), IsEmpty());
  EXPECT_THAT(Ngram({1, 2, 3}, 4), IsEmpty());
  EXPECT_THAT(Ngram({1, 2, 3, 1, 2}, 4, {.min_context = 3}), IsEmpty());
  EXPECT_THAT(Ngram({1, 2, 3, 4, 1, 2, 3}, 4, {.min_context = 3}), ElementsAre(4, 1, 2, 3));
}

TEST(NgramDrafter, OnlyCommittedTokensCount) {
  Generation generation = Sequence({1, 2, 3, 1});
  NgramDrafter drafter({});
  for (TokenId token : {3, 1, 3, 1, 2, 1}) {
    const Proposal proposal = drafter.Draft(generation, 4);
    EXPECT_FALSE(proposal.empty());
    Reject(generation, proposal, token);
  }
  NgramDrafter fresh({});
  EXPECT_EQ(TokensOf(drafter.Draft(generation, 4)), TokensOf(fresh.Draft(generation, 4)));
  EXPECT_EQ(drafter.table().size(), fresh.table().size());
}

TEST(NgramDrafter, LearnsWhatIsCommitted) {
  Generation generation = Sequence({1, 2, 3});
  NgramDrafter drafter({});
  EXPECT_THAT(TokensOf(drafter.Draft(generation, 4)), IsEmpty());
  Reject(generation, {}, 1);
  EXPECT_THAT(TokensOf(drafter.Draft(generation, 1)), ElementsAre(2));
}

TEST(NgramDrafter, APromptLongerThanTheHistoryCountsByItsEnd) {
  Tokens committed = {1, 2, 1, 2, 1, 2};
  const Tokens rest = {3, 1, 4, 5, 6, 7};
  committed.insert(committed.end(), rest.begin(), rest.end());
  committed.push_back(1);
  EXPECT_THAT(Ngram(committed), ElementsAre(2));
  EXPECT_THAT(Ngram(committed, 1, {.history = 7}), ElementsAre(4));
}

TEST(NgramTable, ForgetsWhatLeavesItsHistory) {
  constexpr size_t kHistory = 32;
  const Tokens tokens = RandomTokens(5'000, 6);
  NgramTable table(3, kHistory);
  for (size_t i = 0; i < tokens.size(); ++i) {
    table.Append(tokens[i]);
    ASSERT_LE(table.size(), 3 * kHistory);
    if (i < kHistory || i % 50 != 0) continue;
    NgramTable fresh(3, kHistory);
    const std::span<const TokenId> recent(&tokens[i + 1 - kHistory], kHistory);
    for (TokenId token : recent) fresh.Append(token);
    ASSERT_EQ(table.size(), fresh.size());
    ASSERT_EQ(table.Next(recent), fresh.Next(recent));
    ASSERT_EQ(table.Next(recent.first(5)), fresh.Next(recent.first(5)));
  }
}

TEST(CopyDrafter, ContinuesTheMostRecentOfTheLongestMatches) {
  EXPECT_THAT(Copy({1, 2, 3, 8, 9, 2, 3, 7, 1, 2, 3}, 2), ElementsAre(8, 9));
  EXPECT_THAT(Copy({4, 2, 3, 8, 9, 2, 3, 7, 5, 2, 3}, 2), ElementsAre(7, 5));
  EXPECT_THAT(Copy({1, 2, 3, 8, 9, 2, 3, 7, 1, 2, 3}, 2, {.max_match = 2}), ElementsAre(7, 1));
  EXPECT_THAT(Copy({1, 6, 1, 7, 5, 1}), ElementsAre(7));
}

TEST(CopyDrafter, GoesOnWithItsOwnCopy) {
  EXPECT_THAT(Copy({1, 1}, 4), ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(Copy({1, 2, 1, 2}, 5), ElementsAre(1, 2, 1, 2, 1));
}

TEST(CopyDrafter, ProposesNothingWithoutAMatch) {
  EXPECT_THAT(Copy({1}, 4), IsEmpty());
  EXPECT_THAT(Copy({1, 2, 3}, 4), IsEmpty());
  EXPECT_THAT(Copy({1, 5, 2, 3, 1}, 4, {.history = 4}), IsEmpty());
}

TEST(LocalDrafter, ATokenChosenWithoutChanceIsAPointMassAndAChain) {
  const Proposal proposal = NgramDrafter({}).Draft(Sequence({1, 2, 3, 1}), 3);
  ASSERT_EQ(proposal.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(proposal[i].parent, i - 1);
    EXPECT_EQ(proposal[i].q.form, Form::kPointMass);
  }
}

TEST(LocalDrafter, TheCoupledRuleTakesNoDistribution) {
  const Generation generation = Sequence({1, 2, 3, 1}, {.rule = v1::RULE_COUPLED});
  for (const ProposalNode& node : NgramDrafter({}).Draft(generation, 3))
    EXPECT_EQ(node.q.form, Form::kAbsent);
  for (const ProposalNode& node : CopyDrafter({}).Draft(generation, 3)) EXPECT_EQ(node.q.form, Form::kAbsent);
}

// --- unigram, bigram and random ---------------------------------------------------------------------------

constexpr int kVocab = 300;

// Token 1 in half of the positions, always followed by 2 or, a third as often, by 3.
std::shared_ptr<const CorpusCounts> Corpus() {
  return std::make_shared<const CorpusCounts>(Tokens{1, 2, 1, 2, 1, 2, 1, 3});
}

RowDrafter Unigram() { return {v1::DRAFTER_KIND_UNIGRAM, MakeUnigramRows(Corpus(), kVocab)}; }
RowDrafter Bigram() { return {v1::DRAFTER_KIND_BIGRAM, MakeBigramRows(Corpus(), kVocab)}; }
RowDrafter RandomRow() { return {v1::DRAFTER_KIND_RANDOM, MakeRandomRows(kVocab)}; }

std::map<TokenId, float> WeightsOf(const ProposalNode& node) {
  std::map<TokenId, float> weights;
  EXPECT_EQ(node.q.form, Form::kSparse);
  for (size_t i = 0; i < node.q.ids.size(); ++i) weights[node.q.ids[i]] = node.q.weights[i];
  return weights;
}

// The proposal as the target parses it.
Proposal Received(const Proposal& proposal) {
  google::protobuf::RepeatedPtrField<v1::DraftNode> nodes;
  SerializeProposal(proposal, &nodes);
  absl::StatusOr<Proposal> received = ParseProposal(nodes, Rule::kToken, kVocab);
  EXPECT_TRUE(received.ok()) << received.status();
  return *std::move(received);
}

TEST(RowDrafter, UnigramsAreDrawnByTheirFrequency) {
  const Proposal proposal = Unigram().Draft(Sequence({9}), 2);
  ASSERT_EQ(proposal.size(), 2u);
  EXPECT_THAT(WeightsOf(proposal[1]), ElementsAre(Pair(1, 4), Pair(2, 3), Pair(3, 1)));
}

TEST(RowDrafter, BigramsAreDrawnGivenTheTokenBefore) {
  const Proposal proposal = Bigram().Draft(Sequence({1}), 2);
  ASSERT_EQ(proposal.size(), 2u);
  EXPECT_THAT(WeightsOf(proposal[0]), ElementsAre(Pair(2, 3), Pair(3, 1)));
  if (proposal[0].token == 2) {
    EXPECT_THAT(WeightsOf(proposal[1]), ElementsAre(Pair(1, 3)));
  }
  EXPECT_THAT(WeightsOf(Bigram().Draft(Sequence({9}), 1)[0]), SizeIs(3)) << "never seen: the unigrams";
}

TEST(RowDrafter, SendsWhatItSampledFrom) {
  for (uint32_t top_n : {0U, 2U, 1000U}) {
    for (uint64_t seed = 0; seed < 50; ++seed) {
      const Generation generation = Sequence({5, 1}, {.seed = seed, .draft_top_n = top_n});
      for (auto* make : {&Unigram, &Bigram, &RandomRow}) {
        const Proposal proposal = make().Draft(generation, 4);
        ASSERT_EQ(proposal.size(), 4u);
        const Proposal received = Received(proposal);
        for (int i = 0; i < 4; ++i) {
          EXPECT_EQ(proposal[i].parent, i - 1);
          EXPECT_EQ(proposal[i].q.form == Form::kDense, top_n == 1000);
          const auto position = generation.size() + static_cast<size_t>(i);
          EXPECT_EQ(DraftSample(received[i].q, {seed, 0}, position, generation.size()), proposal[i].token);
        }
      }
    }
  }
}

TEST(RowDrafter, DrawsEachTokenAsOftenAsItsDistributionSays) {
  constexpr int kDraws = 4'000;
  std::map<TokenId, double> share;
  for (uint64_t seed = 0; seed < kDraws; ++seed) {
    share[Unigram().Draft(Sequence({9}, {.seed = seed}), 1)[0].token] += 1.0 / kDraws;
  }
  // Four standard deviations are 0.03.
  EXPECT_NEAR(share[1], 4.0 / 8, 0.03);
  EXPECT_NEAR(share[2], 3.0 / 8, 0.03);
  EXPECT_NEAR(share[3], 1.0 / 8, 0.03);
}

TEST(RowDrafter, ASeedRepeatsAProposalAndAnotherSeedDoesNot) {
  const auto draft = [](uint64_t seed) {
    return TokensOf(RandomRow().Draft(Sequence({5, 1}, {.seed = seed}), 8));
  };
  EXPECT_EQ(draft(3), draft(3));
  EXPECT_NE(draft(3), draft(4));
  EXPECT_THAT(draft(3), Each(AllOf(Ge(0), Lt(kVocab))));
}

TEST(RowDrafter, UnderTheCoupledRuleItRunsTheTargetsRace) {
  const Generation generation = Sequence({5, 1}, {.rule = v1::RULE_COUPLED, .seed = 11});
  const Proposal proposal = RandomRow().Draft(generation, 3);
  const std::unique_ptr<TokenRows> rows = MakeRandomRows(kVocab);
  ASSERT_EQ(proposal.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(proposal[i].q.form, Form::kAbsent);
    const auto position = generation.size() + static_cast<size_t>(i);
    const std::span<const float> weights = rows->Row(position, 0);
    EXPECT_EQ(proposal[i].token, Race({.weights = weights, .total = SumWeights(weights)}, {11, 0}, position));
  }
}

TEST(RowDrafter, AtTemperatureZeroItTakesTheHeaviest) {
  const Proposal proposal = Bigram().Draft(Sequence({1}, {.temperature = 0}), 3);
  EXPECT_THAT(TokensOf(proposal), ElementsAre(2, 1, 2));
  for (const ProposalNode& node : proposal) EXPECT_EQ(node.q.form, Form::kPointMass);
}

TEST(CorpusCounts, CountsATextFileAndRefusesOthersByName) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/corpus.txt";
  std::ofstream(path) << "the cat and the dog";
  const auto corpus = CorpusCounts::Load(path, TestTokenizer());
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  float total = 0;
  for (const auto& [token, count] : (*corpus)->unigrams()) total += count;
  EXPECT_EQ(static_cast<size_t>(total), TestTokenizer().Encode("the cat and the dog", false).value().size());

  std::ofstream(path, std::ios::trunc).flush();
  for (const std::string& bad : {path, path + ".missing", folder.path()}) {
    const absl::Status status = CorpusCounts::Load(bad, TestTokenizer()).status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad));
  }
}

// --- one after another ------------------------------------------------------------------------------------

Verdict Accepting(size_t tokens) {
  Verdict verdict;
  verdict.path = ChainPath(tokens);
  return verdict;
}

// A fake drafter that proposes what it is told to and records the verdicts.
class FakeDrafter final : public Drafter {
 public:
  FakeDrafter(v1::DrafterKind kind, Tokens tokens) : kind_(kind), tokens_(std::move(tokens)) {}
  void Begin(Generation& /*generation*/, const DraftLength& /*length*/) override {}
  asio::awaitable<Proposal> Take(Generation& /*generation*/, v1::ItemTiming* /*timing*/) override {
    co_return PointMasses(tokens_, v1::RULE_TOKEN);
  }
  void OnVerdict(size_t n, const Verdict& verdict) override { verdicts.emplace_back(n, verdict.path.size()); }
  v1::DrafterKind kind() const override { return kind_; }
  void Stop(const Generation& /*generation*/) override { ++stopped; }
  void Propose(Tokens tokens) { tokens_ = std::move(tokens); }

  std::vector<std::pair<size_t, size_t>> verdicts;
  int stopped = 0;

 private:
  const v1::DrafterKind kind_;
  Tokens tokens_;
};

class AutoDrafterTest : public ::testing::Test {
 protected:
  Tokens Propose() {
    asio::io_context io;
    timing_.Clear();
    drafter_.Begin(generation_, {4});
    auto proposal = asio::co_spawn(io, drafter_.Take(generation_, &timing_), asio::use_future);
    io.run();
    return TokensOf(proposal.get());
  }
  // The target made a proposal in that time.
  void Bring(uint32_t compute_us) {
    TargetProposal proposal;
    proposal.timing.set_compute_us(compute_us);
    proposal.timing.set_batch_sequences(3);
    drafter_.OnProposal(3, std::move(proposal));
  }

  v1::ItemTiming timing_;  // of the last proposal
  Generation generation_ = Sequence({1, 2, 3});
  FakeDrafter* first_ = new FakeDrafter(v1::DRAFTER_KIND_NGRAM, {7});
  FakeDrafter* second_ = new FakeDrafter(v1::DRAFTER_KIND_MODEL, {8, 9});
  AutoDrafter drafter_{std::unique_ptr<Drafter>(first_), std::unique_ptr<Drafter>(second_)};
};

TEST_F(AutoDrafterTest, AsksTheSecondOnlyIfTheFirstHasNothing) {
  EXPECT_THAT(Propose(), ElementsAre(7));
  EXPECT_EQ(drafter_.kind(), v1::DRAFTER_KIND_NGRAM);
  first_->Propose({});
  EXPECT_THAT(Propose(), ElementsAre(8, 9));
  EXPECT_EQ(drafter_.kind(), v1::DRAFTER_KIND_MODEL);
}

TEST_F(AutoDrafterTest, EachHearsOfItsOwnProposalsOnly) {
  Propose();
  drafter_.OnVerdict(3, Accepting(1));
  EXPECT_THAT(first_->verdicts, ElementsAre(Pair(3, 1)));
  EXPECT_THAT(second_->verdicts, IsEmpty());

  Reject(generation_, {}, 5);
  first_->Propose({});
  Propose();
  drafter_.OnVerdict(4, Accepting(2));
  drafter_.OnVerdict(6, Accepting(0));  // a round in which nothing was asked for
  EXPECT_THAT(first_->verdicts, SizeIs(1));
  EXPECT_THAT(second_->verdicts, ElementsAre(Pair(4, 2)));
}

TEST_F(AutoDrafterTest, WantsNothingOfTheTargetWhileTheFirstIsRight) {
  EXPECT_TRUE(drafter_.WantsTargetProposal()) << "before the first round";
  Propose();
  EXPECT_TRUE(drafter_.WantsTargetProposal()) << "it proposes, but was not right yet";
  drafter_.OnVerdict(3, Accepting(1));
  Propose();
  EXPECT_FALSE(drafter_.WantsTargetProposal());
  first_->Propose({});
  Propose();
  EXPECT_TRUE(drafter_.WantsTargetProposal()) << "it has nothing to propose";
}

TEST_F(AutoDrafterTest, WantsTheTargetsProposalAfterAWrongOneOfTheFirst) {
  Propose();
  drafter_.OnVerdict(3, Accepting(1));
  Propose();
  drafter_.OnVerdict(3, Accepting(0));
  Propose();
  EXPECT_TRUE(drafter_.WantsTargetProposal());
  first_->Propose({});
  Propose();
  drafter_.OnVerdict(3, Accepting(2));
  first_->Propose({7});
  Propose();
  EXPECT_TRUE(drafter_.WantsTargetProposal()) << "it was the second that was right";
}

TEST_F(AutoDrafterTest, AnUnusedProposalOfTheTargetTookItsTimeAllTheSame) {
  Bring(50);
  Propose();
  EXPECT_EQ(timing_.compute_us(), 50u);
  EXPECT_EQ(timing_.batch_sequences(), 3u);
  Propose();
  EXPECT_EQ(timing_.compute_us(), 0u) << "that of another round";
  Bring(50);
  first_->Propose({});
  Propose();
  EXPECT_EQ(timing_.compute_us(), 0u) << "the second says itself";
}

TEST_F(AutoDrafterTest, StopsBoth) {
  drafter_.Stop(generation_);
  EXPECT_EQ(first_->stopped, 1);
  EXPECT_EQ(second_->stopped, 1);
}

// --- requests ---------------------------------------------------------------------------------------------

absl::StatusOr<v1::DrafterKind> Chosen(v1::DrafterKind kind, bool draft_service, bool corpus) {
  v1::ServerInfo target;
  target.set_vocab_size(static_cast<uint32_t>(TestTokenizer().vocab_size()));
  target.set_max_context(64);
  target.set_max_draft_tokens(8);
  target.set_kv_blocks(100);
  target.set_block_size(16);
  v1::GenerateRequest proto;
  proto.set_text("The little boy");
  proto.mutable_speculation()->set_drafter(kind);
  const RequestDefaults defaults{.has_draft_service = draft_service, .has_corpus = corpus};
  const absl::StatusOr<Request> request = ParseRequest(proto, defaults, TestTokenizer(), target);
  if (!request.ok()) return request.status();
  return request->drafter;
}

TEST(Request, MayChooseEveryDrafterThatNeedsNothing) {
  for (v1::DrafterKind kind : {v1::DRAFTER_KIND_NGRAM, v1::DRAFTER_KIND_COPY, v1::DRAFTER_KIND_AUTO,
                               v1::DRAFTER_KIND_RANDOM, v1::DRAFTER_KIND_NONE}) {
    EXPECT_EQ(Chosen(kind, false, false).value(), kind);
  }
}

TEST(Request, IsRefusedADrafterWhosePartsAreMissing) {
  const auto message = [](v1::DrafterKind kind) {
    return std::string(Chosen(kind, false, false).status().message());
  };
  EXPECT_EQ(message(v1::DRAFTER_KIND_MODEL),
            "speculation.drafter: model; no draft service is configured; allowed: ngram, none, copy, auto, "
            "random");
  EXPECT_THAT(message(v1::DRAFTER_KIND_UNIGRAM), HasSubstr("unigram; no corpus is configured"));
  EXPECT_THAT(message(v1::DRAFTER_KIND_BIGRAM), HasSubstr("bigram; no corpus is configured"));
  EXPECT_TRUE(Chosen(v1::DRAFTER_KIND_MODEL, true, false).ok());
  EXPECT_TRUE(Chosen(v1::DRAFTER_KIND_BIGRAM, false, true).ok());
}

}  // namespace
}  // namespace outrider
