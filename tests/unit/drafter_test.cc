// The drafters of the coordinator: what they propose from what, and which of them learn the verdict.
#include <gmock/gmock.h>

#include <cmath>
#include <map>
#include <optional>
#include <random>

#include "common/net/asio.h"
#include "coordinator/api/parse_request.h"
#include "coordinator/decode/drafters/local_drafters.h"
#include "tests/unit/test_tokenizer.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

using Form = Distribution::Form;
using Tokens = std::vector<TokenId>;

// Sampled at temperature 1 with a seed, else greedy.
Generation Sequence(Tokens prompt, v1::Rule rule = v1::RULE_TOKEN, std::optional<uint64_t> seed = {}) {
  Request request;
  request.params.set_rule(rule);
  request.params.mutable_sampling()->set_temperature(seed ? 1 : 0);
  request.params.set_seed(seed.value_or(0));
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
  Generation generation = Sequence(committed);
  return TokensOf(NgramDrafter(&generation, options).Draft(k));
}

Tokens Copy(const Tokens& committed, int k = 1) {
  Generation generation = Sequence(committed);
  return TokensOf(CopyDrafter(&generation).Draft(k));
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
  NgramDrafter drafter(&generation, {});
  for (TokenId token : {3, 1, 3, 1, 2, 1}) {
    const Proposal proposal = drafter.Draft(4);
    EXPECT_FALSE(proposal.empty());
    Reject(generation, proposal, token);
  }
  NgramDrafter fresh(&generation, {});
  EXPECT_EQ(TokensOf(drafter.Draft(4)), TokensOf(fresh.Draft(4)));
  EXPECT_EQ(drafter.table().size(), fresh.table().size());
}

TEST(NgramDrafter, LearnsWhatIsCommitted) {
  Generation generation = Sequence({1, 2, 3});
  NgramDrafter drafter(&generation, {});
  EXPECT_THAT(TokensOf(drafter.Draft(4)), IsEmpty());
  Reject(generation, {}, 1);
  EXPECT_THAT(TokensOf(drafter.Draft(1)), ElementsAre(2));
}

TEST(NgramDrafter, ALongPromptCountsAsAWhole) {
  Tokens committed = {8, 9, 8, 9};
  const Tokens rest = RandomTokens(5'000, 7);
  committed.insert(committed.end(), rest.begin(), rest.end());
  committed.push_back(8);
  Generation generation = Sequence(committed);
  NgramDrafter drafter(&generation, {});
  for (int round = 0; round < 3; ++round) EXPECT_THAT(TokensOf(drafter.Draft(1)), ElementsAre(9));
  const size_t read = drafter.table().size();
  drafter.Draft(1);
  EXPECT_EQ(drafter.table().size(), read) << "the prompt has been read";
}

// Where the target samples, q is what was drawn from.
TEST(NgramDrafter, DrawsWhereTheTargetDoes) {
  constexpr int kSamples = 4'000;
  // After 5 came 1 three times and 2 once; after 6 5 came 2.
  const Tokens committed = {5, 1, 5, 1, 5, 1, 6, 5, 2, 6, 5};
  std::map<TokenId, int> drawn;
  Distribution q;
  for (uint64_t seed = 0; seed < kSamples; ++seed) {
    Generation generation = Sequence(committed, v1::RULE_TOKEN, seed);
    const Proposal proposal = NgramDrafter(&generation, {.max_context = 2}).Draft(1);
    ASSERT_EQ(proposal.size(), 1u);
    q = proposal[0].q;
    ++drawn[proposal[0].token];
  }
  ASSERT_EQ(q.form, Form::kSparse);
  EXPECT_THAT(q.ids, ElementsAre(1, 2));
  // Of "6 5": 1 continuation, seen once, so that "5" has half of the weight.
  EXPECT_NEAR(q(1), 0.5 * 3 / 4, 1e-6);
  EXPECT_NEAR(q(2), 0.5 + 0.5 / 4, 1e-6);
  for (const TokenId token : {1, 2}) {
    EXPECT_NEAR(drawn[token] / double{kSamples}, q(token), 5 * std::sqrt(q(1) * q(2) / kSamples)) << token;
  }
  Generation coupled = Sequence(committed, v1::RULE_COUPLED);
  const Proposal proposal = NgramDrafter(&coupled, {.max_context = 2}).Draft(1);
  EXPECT_EQ(proposal[0].q.form, Form::kAbsent);
  EXPECT_EQ(proposal[0].token, 2);
}

TEST(NgramTable, ALawHasTheLikeliestTokens) {
  NgramTable table(1);
  for (const TokenId next : {3, 4}) {
    for (const TokenId token : {1, next}) table.Append(token);
  }
  for (TokenId token = 10; token < 90; ++token) {
    for (int i = 0; i < token; ++i) {
      table.Append(2);
      table.Append(token);
    }
  }
  EXPECT_EQ(table.Law({{7}}).form, Form::kAbsent);
  EXPECT_EQ(table.Law({{1}}, 2).form, Form::kAbsent);
  EXPECT_THAT(table.Law({{1}}).ids, ElementsAre(3, 4));
  const Distribution q = table.Law({{2}});
  EXPECT_THAT(q.ids, SizeIs(NgramTable::kMostLikely));
  EXPECT_EQ(q.ids.front(), 90 - static_cast<TokenId>(NgramTable::kMostLikely));
  EXPECT_DOUBLE_EQ(q.total, SumWeights(q.weights));
}

// Among more continuations than are looked through.
TEST(NgramTable, KnowsTheLikeliestOfMany) {
  NgramTable table(1);
  std::map<TokenId, std::pair<int, size_t>> followed;  // by 1: how often, and when last
  const Tokens tokens = RandomTokens(4'000, 150);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const TokenId token = 2 + tokens[i] * tokens[tokens.size() - 1 - i] % 150;  // some are more frequent
    table.Append(1);
    table.Append(token);
    followed[token] = {followed[token].first + 1, i};
    std::vector<std::pair<std::pair<int, size_t>, TokenId>> ranked;
    for (const auto& [other, rank] : followed) ranked.emplace_back(rank, other);
    std::ranges::sort(ranked, std::greater<>());
    ASSERT_EQ(table.Next({{1}}), ranked[0].second);
    ranked.resize(std::min(ranked.size(), NgramTable::kMostLikely));
    const Distribution q = table.Law({{1}});
    ASSERT_EQ(q.ids.size(), ranked.size());
    if (q.form == Form::kPointMass) continue;
    for (const auto& [rank, other] : ranked) {
      ASSERT_NEAR(q(other) * q.total * static_cast<double>(i + 1), rank.first, 1e-3);
    }
  }
  EXPECT_GT(followed.size(), 2 * NgramTable::kMostLikely);
  EXPECT_EQ(table.size(), 2 * followed.size());
}

// A client decides how many different tokens follow one: this text must not take the square of its length.
TEST(NgramTable, TakesAsMuchForATextInWhichAllTokensFollowOne) {
  NgramTable table(3);
  for (TokenId token = 10; token < 300'000; ++token) {
    table.Append(1);
    table.Append(token);
  }
  EXPECT_EQ(table.Next({{1}}), 299'999);
  EXPECT_THAT(table.Law({{1}}).ids, SizeIs(NgramTable::kMostLikely));
}

// The longest end of a text that occurs earlier, and where it last does.
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
  Generation generation = Sequence(prompt);
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
  const Tokens first = {10, 99};
  generation.Extend(first);
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
  Generation generation = Sequence({1, 2, 3, 1});
  const Proposal proposal = NgramDrafter(&generation, {}).Draft(3);
  ASSERT_EQ(proposal.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(proposal[i].parent, i - 1);
    EXPECT_EQ(proposal[i].q.form, Form::kPointMass);
  }
}

TEST(LocalDrafter, TheCoupledRuleTakesNoDistribution) {
  Generation generation = Sequence({1, 2, 3, 1}, v1::RULE_COUPLED);
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
  AutoDrafter drafter_{&generation_, std::unique_ptr<Drafter>(first_), std::unique_ptr<Drafter>(second_)};
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
            "speculation.drafter: model; no draft service is configured; allowed: ngram, none, copy, auto");
  EXPECT_TRUE(Chosen(v1::DRAFTER_KIND_MODEL, true).ok());
}

}  // namespace
}  // namespace outrider
