// The coordinator's drafters: what they propose, and which of them are told the verdict.
#include <gmock/gmock.h>

#include "common/net/asio.h"
#include "coordinator/api/parse_request.h"
#include "coordinator/decode/drafters/local_drafters.h"
#include "tests/unit/drafter_testing.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

using Form = Distribution::Form;

Tokens Copy(const Tokens& committed, int k = 1) {
  Generation generation = GenerationAfter(committed);
  return TokensOf(CopyDrafter(&generation).Draft(k));
}

// The longest suffix of a text that also occurs earlier, and its last earlier occurrence.
SuffixAutomaton::Repeat LongestRepeat(const Tokens& text) {
  SuffixAutomaton::Repeat repeat;
  for (size_t end = text.size() - 1; end > 0; --end) {
    size_t length = 0;
    while (length < end && text[end - 1 - length] == text[text.size() - 1 - length]) ++length;
    if (length > repeat.length) repeat = {length, end};
  }
  return repeat;
}

TEST(SuffixAutomaton, FindsTheLongestEndThatOccursEarlier) {
  for (const TokenId vocab : {1, 2, 3, 20, 400}) {
    SuffixAutomaton automaton;
    Tokens text;
    for (const TokenId token : RandomTokens(500, vocab)) {
      automaton.Append(token);
      text.push_back(token);
      const SuffixAutomaton::Repeat wanted = LongestRepeat(text);
      ASSERT_EQ(automaton.repeat().length, wanted.length);
      if (wanted.length > 0 && vocab > 1) {
        ASSERT_EQ(automaton.repeat().end, wanted.end);
      }
    }
  }
}

TEST(SuffixAutomaton, TakesAsMuchForATextOfOneToken) {
  SuffixAutomaton automaton;
  for (int i = 0; i < 100'000; ++i) automaton.Append(7);
  EXPECT_EQ(automaton.repeat().length, 99'999u);
  EXPECT_EQ(automaton.repeat().end, 99'999u);
}

TEST(CopyDrafter, ContinuesTheMostRecentOfTheLongestMatches) {
  EXPECT_THAT(Copy({1, 2, 3, 8, 9, 2, 3, 7, 1, 2, 3}, 2), ElementsAre(8, 9));
  EXPECT_THAT(Copy({4, 2, 3, 8, 9, 2, 3, 7, 5, 2, 3}, 2), ElementsAre(7, 5));
  EXPECT_THAT(Copy({1, 6, 1, 7, 5, 1}), ElementsAre(7));
}

TEST(CopyDrafter, CopiesAsManyTokensAsItHasSeenRepeated) {
  EXPECT_THAT(Copy({1, 2, 3, 4, 5, 6, 1}, 4), ElementsAre(2));
  EXPECT_THAT(Copy({1, 2, 3, 4, 5, 6, 1, 2, 3}, 4), ElementsAre(4, 5, 6));
  EXPECT_THAT(Copy({1, 2, 3, 4, 5, 6, 1, 2, 3}, 2), ElementsAre(4, 5));
  EXPECT_THAT(Copy({1, 2, 3, 4, 5, 6, 1, 2, 3}, 0), IsEmpty());
}

TEST(CopyDrafter, GoesOnWithItsOwnCopy) {
  EXPECT_THAT(Copy({1, 1, 1, 1}, 4), ElementsAre(1, 1, 1));
  EXPECT_THAT(Copy({1, 2, 1, 2, 1, 2}, 5), ElementsAre(1, 2, 1, 2));
}

TEST(CopyDrafter, ProposesNothingWithoutAMatch) {
  EXPECT_THAT(Copy({1}, 4), IsEmpty());
  EXPECT_THAT(Copy({1, 2, 3}, 4), IsEmpty());
}

TEST(CopyDrafter, ReadsALongPromptAPartARound) {
  Tokens prompt = RandomTokens(5'000, 1 << 20);
  prompt.push_back(prompt[17]);
  Generation generation = GenerationAfter(prompt);
  CopyDrafter drafter(&generation);
  EXPECT_TRUE(drafter.Draft(4).empty());
  EXPECT_TRUE(drafter.Draft(4).empty());
  EXPECT_THAT(TokensOf(drafter.Draft(4)), ElementsAre(prompt[18]));
}

TEST(CopyDrafter, BeginsAsThePredictionDoesAndFindsTheWayBackToIt) {
  Request request;
  request.prompt = {1, 2, 3};
  request.prediction = {10, 11, 12, 13, 14, 15};
  request.max_tokens = 20;
  Generation generation(request, nullptr, Clock::now());
  CopyDrafter drafter(&generation);
  EXPECT_THAT(TokensOf(drafter.Draft(4)), ElementsAre(10, 11, 12, 13));
  EXPECT_EQ(drafter.predicted(), 4u);
  EXPECT_THAT(TokensOf(drafter.Draft(9)), ElementsAre(10, 11, 12, 13, 14, 15)) << "no further than it goes";
  const Tokens first = {10}, other = {99};
  generation.Extend(first);
  EXPECT_THAT(TokensOf(drafter.Draft(4)), ElementsAre(11, 12, 13, 14)) << "after one token as after many";
  generation.Extend(other);
  EXPECT_THAT(TokensOf(drafter.Draft(4)), IsEmpty());
  EXPECT_EQ(drafter.predicted(), 0u);
  const Tokens second = {12, 13};
  generation.Extend(second);
  EXPECT_THAT(TokensOf(drafter.Draft(4)), ElementsAre(14, 15));
  EXPECT_EQ(drafter.predicted(), 2u);
  const Tokens third = {10, 99};
  generation.Extend(third);
  EXPECT_THAT(TokensOf(drafter.Draft(1)), ElementsAre(12)) << "from the answer";
  EXPECT_EQ(drafter.predicted(), 0u);
}

TEST(LocalDrafter, ATokenChosenWithoutChanceIsAPointMassAndAChain) {
  Generation generation = GenerationAfter({1, 2, 3, 1});
  const Proposal proposal = NgramDrafter(&generation, {}).Draft(3);
  ASSERT_EQ(proposal.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(proposal[i].parent, i - 1);
    EXPECT_EQ(proposal[i].q.form, Form::kPointMass);
  }
}

TEST(LocalDrafter, TheCoupledRuleTakesNoDistribution) {
  Generation generation = GenerationAfter({1, 2, 3, 1}, v1::RULE_COUPLED);
  for (const ProposalNode& node : NgramDrafter(&generation, {}).Draft(3))
    EXPECT_EQ(node.q.form, Form::kAbsent);
  for (const ProposalNode& node : CopyDrafter(&generation).Draft(3)) EXPECT_EQ(node.q.form, Form::kAbsent);
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
  FakeDrafter(v1::DrafterKind kind, Tokens tokens)
      : Drafter(nullptr), kind_(kind), tokens_(std::move(tokens)) {}
  void Begin(const DraftLength& /*length*/) override {}
  asio::awaitable<Proposal> Take(v1::ItemTiming* /*timing*/) override {
    Proposal chain;
    for (const TokenId token : tokens_) AppendUndrawn(token, v1::RULE_TOKEN, chain);
    co_return chain;
  }
  void OnVerdict(size_t n, const Verdict& verdict) override { verdicts.emplace_back(n, verdict.path.size()); }
  bool MayPropose() override { return !tokens_.empty(); }
  v1::DrafterKind kind() const override { return kind_; }
  void Stop() override { ++stopped; }
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
    drafter_.Begin({4});
    auto proposal = asio::co_spawn(io, drafter_.Take(&timing_), asio::use_future);
    io.run();
    return TokensOf(proposal.get());
  }
  // Gives the drafter a proposal of the target's that took this long to make.
  void Bring(uint32_t compute_us) {
    TargetProposal proposal;
    proposal.timing.set_compute_us(compute_us);
    proposal.timing.set_batch_sequences(3);
    drafter_.OnProposal(3, std::move(proposal));
  }

  v1::ItemTiming timing_;  // of the last proposal
  Generation generation_ = GenerationAfter({1, 2, 3});
  FakeDrafter* first_ = new FakeDrafter(v1::DRAFTER_KIND_NGRAM, {7});
  FakeDrafter* second_ = new FakeDrafter(v1::DRAFTER_KIND_MODEL, {8, 9});
  AutoDrafter drafter_{&generation_, std::unique_ptr<Drafter>(first_), std::unique_ptr<Drafter>(second_)};
};

TEST_F(AutoDrafterTest, AsksTheSecondOnlyIfTheFirstHasNothing) {
  EXPECT_THAT(Propose(), ElementsAre(7));
  EXPECT_EQ(drafter_.kind(), v1::DRAFTER_KIND_NGRAM);
  first_->Propose({});
  EXPECT_THAT(Propose(), ElementsAre(8, 9));
  EXPECT_EQ(drafter_.kind(), v1::DRAFTER_KIND_MODEL);
}

TEST_F(AutoDrafterTest, KnowsWhoProposesNext) {
  EXPECT_EQ(drafter_.NextKind(), v1::DRAFTER_KIND_NGRAM);
  first_->Propose({});
  EXPECT_EQ(drafter_.NextKind(), v1::DRAFTER_KIND_MODEL);
  EXPECT_TRUE(drafter_.MayPropose());
  second_->Propose({});
  EXPECT_FALSE(drafter_.MayPropose());
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
  drafter_.OnVerdict(6, Accepting(0));  // a round without a proposal
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
  drafter_.Stop();
  EXPECT_EQ(first_->stopped, 1);
  EXPECT_EQ(second_->stopped, 1);
}

// --- requests ---------------------------------------------------------------------------------------------

absl::StatusOr<v1::DrafterKind> Chosen(v1::DrafterKind kind, bool draft_service) {
  v1::ServerInfo target;
  target.set_vocab_size(static_cast<uint32_t>(TestTokenizer().vocab_size()));
  target.set_max_context(64);
  target.set_max_draft_tokens(8);
  target.set_kv_blocks(100);
  target.set_block_size(16);
  v1::GenerateRequest proto;
  proto.set_text("The little boy");
  proto.mutable_speculation()->set_drafter(kind);
  const RequestDefaults defaults{.has_draft_service = draft_service};
  const absl::StatusOr<Request> request = ParseRequest(proto, defaults, TestTokenizer(), target);
  if (!request.ok()) return request.status();
  return request->drafter;
}

TEST(Request, MayChooseEveryDrafterThatNeedsNothing) {
  for (v1::DrafterKind kind :
       {v1::DRAFTER_KIND_NGRAM, v1::DRAFTER_KIND_COPY, v1::DRAFTER_KIND_AUTO, v1::DRAFTER_KIND_NONE}) {
    EXPECT_EQ(Chosen(kind, false).value(), kind);
  }
}

TEST(Request, IsRefusedADrafterWhosePartsAreMissing) {
  EXPECT_EQ(std::string(Chosen(v1::DRAFTER_KIND_MODEL, false).status().message()),
            "speculation.drafter: model; no draft service is configured; allowed: ngram, none, copy, auto, "
            "grammar");
  EXPECT_TRUE(Chosen(v1::DRAFTER_KIND_MODEL, true).ok());
}

}  // namespace
}  // namespace outrider
