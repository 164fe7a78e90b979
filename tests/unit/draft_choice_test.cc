#include "coordinator/policy/draft_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <random>

#include "common/spec/analysis.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;

// A machine whose times are known, and a draft that is right with probability alpha.
struct Machine {
  double verify_us = 200, row_us = 5, wire_us = 60;
  double first_step_us = 0;  // in addition to the time of a step
  double step_us = 30, step_sequence_us = 2;
  double alpha = 0.8;
  int batch = 1;

  RoundTimes Times(int k) const {
    RoundTimes times;
    const auto micros = [](double us) {
      return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(us * 1e-6));
    };
    const auto fill = [&](double us, int rows, v1::ItemTiming& timing) {
      timing.set_compute_us(static_cast<uint32_t>(us));
      timing.set_batch_sequences(static_cast<uint32_t>(batch));
      timing.set_batch_rows(static_cast<uint32_t>(rows));
    };
    const int rows = batch * (k + 1);
    fill(verify_us + row_us * rows, rows, times.verify_server);
    times.verify = micros(verify_us + row_us * rows + wire_us);
    if (k > 0) {
      const double draft = first_step_us + k * (step_us + step_sequence_us * batch);
      fill(draft, batch, times.draft_server);
      times.draft = micros(draft + wire_us);
    }
    times.round = times.verify + times.draft;
    return times;
  }
  // The rate of the whole machine, which runs a batch of rounds at a time.
  double TokensPerSecond(int k) const {
    const RoundTimes times = Times(k);
    const double shared = Seconds(times.verify) + Seconds(times.draft);
    return batch * ExpectedTokens(alpha, k) / shared;
  }
  double Best(int most) const {
    double best = 0;
    for (int k = 0; k <= most; ++k) best = std::max(best, TokensPerSecond(k));
    return best;
  }
};

class DraftChoiceTest : public ::testing::Test {
 protected:
  static constexpr int kMost = 10;

  explicit DraftChoiceTest(v1::DrafterKind drafter = v1::DRAFTER_KIND_MODEL)
      : generation_(MakeRequest(drafter), tokenizer_.get(), Clock::now()) {}

  static Request MakeRequest(v1::DrafterKind drafter = v1::DRAFTER_KIND_MODEL) {
    Request request;
    request.drafter = drafter;
    request.prompt = {1};
    request.max_tokens = 1 << 20;
    request.draft_tokens = kMost;
    request.adaptive = true;
    request.params.mutable_sampling()->set_temperature(0);
    request.params.set_rule(v1::RULE_TOKEN);
    return request;
  }

  // Reports a committed round to the policy.
  void Report(const Proposal& drafted, const Verdict& verdict, const RoundTimes& times,
              DraftStatus status = DraftStatus::kUsable, const AheadReport& ahead = {}) {
    const RoundReport report{.generation = &generation_,
                             .proposal = &drafted,
                             .verdict = &verdict,
                             .drafter = generation_.round_drafter(),
                             .draft_status = status,
                             .chosen = static_cast<int>(drafted.size()),
                             .emitted = static_cast<int>(verdict.path.size()) + 1,
                             .running = policy_.running(),
                             .proposal_bytes = 0,
                             .ahead = ahead,
                             .times = times};
    policy_.OnRound(report);
  }
  void ReportFailure(const RoundTimes& times) { Report({}, {}, times, DraftStatus::kFailed); }

  // Commits a round with k drafted tokens, and reports it to the policy unless it was the prompt's.
  void Play(int k, int accepted, const Machine& machine) {
    Proposal draft;
    for (int i = 0; i < k; ++i) AppendToChain(2, {}, draft);
    Verdict verdict;
    verdict.path = ChainPath(static_cast<size_t>(accepted));
    verdict.token = 2;
    if (k > 0) verdict.kind = accepted == k ? Verdict::Kind::kBonus : Verdict::Kind::kCorrected;
    const bool prompt = generation_.emitted() == 0;
    generation_.Commit(draft, verdict);
    if (!prompt) Report(draft, verdict, machine.Times(k));
  }

  // Runs rounds and returns the rate of the second half, as a share of the best fixed K's. If only some
  // of the batch are this coordinator's, the others choose the same.
  double ShareOfBest(const Machine& machine, int rounds = 2000, std::optional<int> own = {}) {
    const int running = own.value_or(machine.batch);
    for (int i = 0; i < running; ++i) policy_.Begin();
    double share = 0;
    int next = 0;
    std::map<int, int> chosen;
    for (int round = 0; round < rounds; ++round) {
      const int k = chooses_before_ ? std::exchange(next, policy_.ChooseNext(generation_).most)
                                    : policy_.Choose(generation_).most;
      if (round >= rounds / 2) ++chosen[k];
      int accepted = 0;
      while (accepted < k && uniform_(random_) < machine.alpha) ++accepted;
      Play(k, accepted, machine);
      if (round >= rounds / 2) share += machine.TokensPerSecond(k) / machine.Best(kMost) / (rounds / 2);
    }
    for (int i = 0; i < running; ++i) policy_.End();
    plain_ += chosen[0];
    usual_k_ = std::ranges::max_element(chosen, {}, &std::pair<const int, int>::second)->first;
    return share;
  }

  std::unique_ptr<Tokenizer> tokenizer_ = *Tokenizer::Load("tests/data/text/gpt2-small.tokenizer.json");
  Generation generation_;
  DraftChoice policy_;
  std::mt19937 random_{5};
  std::uniform_real_distribution<double> uniform_;
  bool chooses_before_ = false;  // what a round drafts is chosen in the round before
  // The most frequent K and the number of rounds without a draft, among the rounds whose rate counts.
  int usual_k_ = 0;
  int plain_ = 0;
};

TEST_F(DraftChoiceTest, ComesCloseToTheBestFixedLength) {
  for (const Machine& machine :
       {Machine{.alpha = 0.9}, Machine{.alpha = 0.6}, Machine{.row_us = 40, .alpha = 0.8},
        Machine{.step_us = 100, .alpha = 0.7}, Machine{.wire_us = 400, .alpha = 0.8}}) {
    EXPECT_GT(ShareOfBest(machine, 6000), 0.96) << machine.alpha << " " << machine.step_us;
  }
}

TEST_F(DraftChoiceTest, ComesAsCloseIfItChoosesARoundBefore) {
  chooses_before_ = true;
  for (const Machine& machine : {Machine{.alpha = 0.9}, Machine{.step_us = 100, .alpha = 0.7}}) {
    EXPECT_GT(ShareOfBest(machine, 6000), 0.96) << machine.alpha;
  }
  EXPECT_GT(plain_, 0) << "it tries plain rounds now and then";
  EXPECT_GT(ShareOfBest({.step_us = 400, .alpha = 0.5}, 6000), 0.96);
  EXPECT_EQ(usual_k_, 0);
  EXPECT_GT(ShareOfBest({.step_us = 20, .alpha = 0.9}, 20000), 0.9);
  EXPECT_GT(usual_k_, 2);
}

// The target is asked for its own proposal before its verdict is known.
TEST_F(DraftChoiceTest, TheNextRoundHasRoomForATokenLess) {
  Request request = MakeRequest();
  request.adaptive = false;
  for (const auto& [max_tokens, now, next] :
       {std::tuple(2, 1, 0), std::tuple(3, 2, 1), std::tuple(100, 10, 10)}) {
    request.max_tokens = max_tokens + 1;
    Generation generation(request, tokenizer_.get(), Clock::now());
    EXPECT_EQ(policy_.Choose(generation).most, 0) << "the prompt is computed without a draft";
    EXPECT_EQ(policy_.ChooseNext(generation).most, std::min(max_tokens - 1, 10));
    Verdict verdict;
    verdict.token = 2;
    generation.Commit({}, verdict);
    EXPECT_EQ(policy_.Choose(generation).most, now);
    EXPECT_EQ(policy_.ChooseNext(generation).most, next);
  }
}

TEST_F(DraftChoiceTest, DropsToPlainDecodingWhenDraftingDoesNotPayAndComesBack) {
  EXPECT_GT(ShareOfBest({.step_us = 400, .alpha = 0.5}, 6000), 0.98);
  EXPECT_EQ(usual_k_, 0);
  EXPECT_GT(ShareOfBest({.step_us = 20, .alpha = 0.9}, 20000), 0.9);
  EXPECT_GT(usual_k_, 2);
}

TEST_F(DraftChoiceTest, SeesFromTwoRoundsWhatRowsCost) {
  const Machine slow_rows{.verify_us = 40, .row_us = 160, .alpha = 0.65};
  policy_.Begin();
  std::vector<int> chosen;
  for (int round = 0; round < 13; ++round) {
    chosen.push_back(policy_.Choose(generation_).most);
    Play(chosen.back(), /*accepted=*/0, slow_rows);
  }
  policy_.End();
  EXPECT_THAT(chosen, ElementsAre(0, 4, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1));
}

TEST_F(DraftChoiceTest, OneRejectedDraftDoesNotMakeTheNextOnesShort) {
  policy_.Begin();
  std::vector<int> chosen;
  for (int round = 0; round < 6; ++round) {
    chosen.push_back(policy_.Choose(generation_).most);
    Play(chosen.back(), /*accepted=*/round == 1 ? 0 : chosen.back(), {.verify_us = 2000});
  }
  policy_.End();
  EXPECT_THAT(chosen, ElementsAre(0, 4, 0, 4, 4, 4));
}

TEST_F(DraftChoiceTest, AGenerationAloneTriesPlainRoundsNowAndThen) {
  EXPECT_GT(ShareOfBest({.alpha = 0.9}, 8192), 0.96);
  EXPECT_EQ(plain_, 4096 / 256);
  plain_ = 0;
  const Machine together{.alpha = 0.9, .batch = 4};
  ShareOfBest(together, 40'000);
  EXPECT_LT(plain_, 20'000 / 20) << "several try them together, more and more rarely";
  const auto seconds = [&](int k) { return Seconds(together.Times(k).round); };
  EXPECT_LT(plain_ * seconds(0), 20'000 * seconds(usual_k_) / 32);
}

TEST_F(DraftChoiceTest, DropsUnderLoadWhereRowsDecide) {
  const Machine loaded{.row_us = 45, .step_sequence_us = 15, .alpha = 0.7, .batch = 64};
  EXPECT_GT(ShareOfBest(loaded, 6000), 0.96);
  EXPECT_EQ(usual_k_, 0);
}

// How many of the eight sequences in a step are this coordinator's.
class SeveralCoordinatorsTest : public DraftChoiceTest, public ::testing::WithParamInterface<int> {};

TEST_P(SeveralCoordinatorsTest, DraftNothingWhereTheRowsOfAllAreDear) {
  EXPECT_GT(ShareOfBest({.row_us = 40, .alpha = 0.7, .batch = 8}, 40'000, GetParam()), 0.95);
  EXPECT_EQ(usual_k_, 0);
}
TEST_P(SeveralCoordinatorsTest, DraftWhereTheyAreCheap) {
  EXPECT_GT(ShareOfBest({.alpha = 0.8, .batch = 8}, 40'000, GetParam()), 0.95);
  EXPECT_GE(usual_k_, 3);
}
INSTANTIATE_TEST_SUITE_P(Own, SeveralCoordinatorsTest, ::testing::Values(1, 2, 4, 8));

// Rows cost little until arithmetic decides, and what a load takes says nothing about a generation alone.
TEST_F(DraftChoiceTest, DraftsAtOnceAfterALoadUnderWhichItDidNot) {
  const Machine alone{.verify_us = 2000, .row_us = 60, .step_us = 300, .alpha = 0.6};
  const Machine loaded{.verify_us = 800, .row_us = 400, .step_us = 300, .alpha = 0.6, .batch = 16};
  ShareOfBest(alone, 2000);
  EXPECT_GE(usual_k_, 1);
  ShareOfBest(loaded, 4000);
  EXPECT_EQ(usual_k_, 0);
  policy_.Begin();
  EXPECT_GE(policy_.Choose(generation_).most, 1);
  policy_.End();
}

TEST_F(DraftChoiceTest, GenerationsThatChooseTogetherMakeOneProbe) {
  const Machine loaded{.row_us = 45, .step_sequence_us = 15, .alpha = 0.7, .batch = 8};
  ShareOfBest(loaded, 8000);
  for (int i = 0; i < loaded.batch; ++i) policy_.Begin();
  int together = 0, most_together = 0;
  for (int round = 0; round < 4000; ++round, together = 0) {
    std::vector<int> chosen;
    for (int i = 0; i < loaded.batch; ++i) chosen.push_back(policy_.Choose(generation_).most);
    for (const int k : chosen) {
      together += k > 0;
      Play(k, 0, loaded);
    }
    most_together = std::max(most_together, together);
  }
  EXPECT_EQ(most_together, 1);
}

class SeveralChoicesTest : public DraftChoiceTest, public ::testing::WithParamInterface<v1::DrafterKind> {
 protected:
  SeveralChoicesTest() : DraftChoiceTest(GetParam()) {}
};

TEST_P(SeveralChoicesTest, OneDraftsAsItsOwnAcceptanceAllowsUnlessADraftServiceHasToKeepStep) {
  ShareOfBest({.row_us = 20, .alpha = 0.7, .batch = 4}, 1000);
  Generation easy(MakeRequest(GetParam()), tokenizer_.get(), Clock::now());
  Generation hard(MakeRequest(GetParam()), tokenizer_.get(), Clock::now());
  Proposal draft;
  AppendToChain(2, {}, draft);
  for (int i = 0; i < 100; ++i) {
    Verdict accepting;
    accepting.path = ChainPath(1);
    accepting.token = 2;
    easy.Commit(draft, accepting);
    Verdict rejecting;
    rejecting.token = 2;
    hard.Commit(draft, rejecting);
  }
  for (int i = 0; i < 4; ++i) policy_.Begin();
  const int common = policy_.Choose(generation_).most;
  const bool in_step = GetParam() == v1::DRAFTER_KIND_MODEL;
  EXPECT_EQ(policy_.Choose(easy).most > common, !in_step);
  EXPECT_EQ(policy_.Choose(hard).most < common, !in_step);
  for (int i = 0; i < 4; ++i) policy_.End();
}
INSTANTIATE_TEST_SUITE_P(Drafters, SeveralChoicesTest,
                         ::testing::Values(v1::DRAFTER_KIND_MODEL, v1::DRAFTER_KIND_EAGLE));

TEST_F(DraftChoiceTest, DropsWhenProposalsFailAndComesBackWhenTheyDoNot) {
  const Machine machine{.alpha = 0.9};
  ShareOfBest(machine, 2000);
  EXPECT_GT(usual_k_, 2);
  policy_.Begin();
  RoundTimes failed = machine.Times(0);
  failed.draft = std::chrono::milliseconds(150);
  for (int i = 0; i < 3; ++i) ReportFailure(failed);
  EXPECT_EQ(policy_.Choose(generation_).most, 0) << "a failure costs hundreds of plain rounds";
  policy_.End();
  ShareOfBest(machine, 2000);
  EXPECT_GT(usual_k_, 2);
}

TEST_F(DraftChoiceTest, ADraftThatNeverGivesAnythingIsNotAskedForLong) {
  const Machine machine;
  policy_.Begin();
  Verdict verdict;
  verdict.token = 2;
  generation_.Commit({}, verdict);
  RoundTimes failed = machine.Times(0);
  failed.draft = std::chrono::milliseconds(1);
  int asked = 0;
  for (int round = 0; round < 400; ++round) {
    if (policy_.Choose(generation_).most > 0) {
      ++asked;
      ReportFailure(failed);
    } else {
      Report({}, verdict, machine.Times(0));
    }
  }
  policy_.End();
  EXPECT_LT(asked, 20);
}

TEST_F(DraftChoiceTest, FollowsASequenceThatBecomesEasier) {
  ShareOfBest({.alpha = 0.3}, 2000);
  const int hard = usual_k_;
  ShareOfBest({.alpha = 0.95}, 2000);
  EXPECT_GT(usual_k_, hard + 2);
}

TEST_F(DraftChoiceTest, DraftsNothingForThePromptAndNeverPastTheEnd) {
  EXPECT_EQ(policy_.Choose(generation_).most, 0);
  Request request = MakeRequest();
  request.max_tokens = 3;
  request.adaptive = false;
  Generation generation(std::move(request), tokenizer_.get(), Clock::now());
  Verdict verdict;
  verdict.token = 2;
  generation.Commit({}, verdict);
  EXPECT_EQ(policy_.Choose(generation).most, 1);
  generation.Commit({}, verdict);
  EXPECT_EQ(policy_.Choose(generation).most, 0);
}

// Requests with `auto`, whose rounds have one of two drafters.
class AutoDraftChoiceTest : public DraftChoiceTest {
 protected:
  AutoDraftChoiceTest() : DraftChoiceTest(v1::DRAFTER_KIND_AUTO) {}

  // Plays a round in which `auto` asks this drafter, and returns its K.
  int Round(v1::DrafterKind drafter, double alpha) {
    generation_.SetRoundDrafter(drafter);
    const int k = drafter == v1::DRAFTER_KIND_EAGLE ? next_ : policy_.Choose(generation_).most;
    int accepted = 0;
    while (accepted < k && uniform_(random_) < alpha) ++accepted;
    next_ = policy_.ChooseNext(generation_).most;
    Play(k, accepted, {.row_us = 20});
    return k;
  }

  int next_ = 0;  // the target's proposal is chosen a round before
};

TEST_F(AutoDraftChoiceTest, ADrafterThatIsWrongDoesNotStopAnotherThatIsRight) {
  policy_.Begin();
  std::map<int, int> good, bad;
  for (int round = 0; round < 2000; ++round) {
    // The text copies itself for eight rounds, and then for eight it does not.
    if (round / 8 % 2 == 0) {
      ++good[Round(v1::DRAFTER_KIND_NGRAM, 0.95)];
    } else {
      ++bad[Round(v1::DRAFTER_KIND_EAGLE, 0.05)];
    }
  }
  policy_.End();
  EXPECT_GT(bad[0], 900) << "of 1000";
  EXPECT_LT(good[0], 20);
  EXPECT_GT(good[5] + good[6] + good[7] + good[8] + good[9] + good[10], 900);
}

TEST_F(AutoDraftChoiceTest, OnlyTheDraftsOwnFailuresKeepItFromThePrompt) {
  policy_.Begin();
  for (int round = 0; round < 200; ++round) Round(v1::DRAFTER_KIND_NGRAM, 0);
  EXPECT_TRUE(policy_.ExpectsToDraft(generation_));
  for (int round = 0; round < 200; ++round) Round(v1::DRAFTER_KIND_MODEL, 0);
  EXPECT_FALSE(policy_.ExpectsToDraft(generation_));
  policy_.End();
}

// A draft model that says how sure it was, and stops where it is told to.
class DraftThatStopsTest : public DraftChoiceTest {
 protected:
  static constexpr float kSure = 0.95f, kUnsure = 0.55f;

  struct Model {
    double sure = 0.6;  // how often it is sure
    double accepted_if_sure = 0.98, accepted_if_not = 0.4;
    bool persistent = false;  // as sure of a round's other tokens as of its first
  };
  struct Drafted {
    Proposal drafted;
    size_t accepted = 0;
  };

  Drafted Draft(const DraftLength& length, const Model& model) {
    Drafted outcome;
    bool sure = uniform_(random_) < model.sure;
    for (int i = 0; i < length.most; ++i) {
      if (i > 0 && !model.persistent) sure = uniform_(random_) < model.sure;
      const bool stands = uniform_(random_) < (sure ? model.accepted_if_sure : model.accepted_if_not);
      if (stands && outcome.accepted == outcome.drafted.size()) ++outcome.accepted;
      AppendToChain(2, {}, outcome.drafted);
      if (length.stop) outcome.drafted.back().confidence = sure ? kSure : kUnsure;
      if (length.stop && EndsDraft(*length.stop, outcome.drafted)) break;
    }
    return outcome;
  }
  static Verdict Commit(const Drafted& outcome, Generation& generation) {
    Verdict verdict;
    verdict.path = ChainPath(outcome.accepted);
    verdict.token = 2;
    if (!outcome.drafted.empty()) {
      verdict.kind =
          outcome.accepted == outcome.drafted.size() ? Verdict::Kind::kBonus : Verdict::Kind::kCorrected;
    }
    generation.Commit(outcome.drafted, verdict);
    return verdict;
  }

  // Tokens a second of rounds with the lengths that the policy chooses, or with a fixed K.
  double Rate(const Machine& machine, const Model& model, std::optional<int> fixed_k, int rounds = 4000) {
    double tokens = 0, seconds = 0;
    if (!fixed_k) policy_.Begin();
    for (int round = 0; round < rounds; ++round) {
      const DraftLength length = fixed_k ? DraftLength{*fixed_k} : policy_.Choose(generation_);
      const Drafted outcome = Draft(length, model);
      const RoundTimes times = machine.Times(static_cast<int>(outcome.drafted.size()));
      if (!fixed_k) {
        const bool prompt = generation_.emitted() == 0;
        const Verdict verdict = Commit(outcome, generation_);
        if (!prompt) Report(outcome.drafted, verdict, times);
      }
      if (round < rounds / 4) continue;
      tokens += static_cast<double>(outcome.accepted) + 1;
      seconds += Seconds(times.draft) + Seconds(times.verify);
    }
    if (!fixed_k) policy_.End();
    return tokens / seconds;
  }
};

TEST_F(DraftThatStopsTest, BeatsEveryFixedLength) {
  const Machine machine{.row_us = 20};
  double best = 0;
  for (int k = 0; k <= kMost; ++k) best = std::max(best, Rate(machine, {}, k));
  EXPECT_GT(Rate(machine, {}, std::nullopt), 1.03 * best);
}

TEST_F(DraftThatStopsTest, LosesNothingWhereItsConfidenceSaysNothing) {
  const Machine machine{.row_us = 20};
  const Model model{.accepted_if_sure = 0.7, .accepted_if_not = 0.7};
  double best = 0;
  for (int k = 0; k <= kMost; ++k) best = std::max(best, Rate(machine, model, k));
  EXPECT_GT(Rate(machine, model, std::nullopt), 0.96 * best);
}

TEST_F(DraftThatStopsTest, GoesOnForWhatTheNextTokenCostsWhateverTheFirstDid) {
  const Machine machine{.row_us = 5, .first_step_us = 300, .step_us = 5};
  const Model model{.accepted_if_sure = 0.9, .accepted_if_not = 0.9};
  double best = 0;
  for (int k = 0; k <= kMost; ++k) best = std::max(best, Rate(machine, model, k));
  EXPECT_GT(Rate(machine, model, std::nullopt), 0.97 * best);
}

TEST_F(DraftThatStopsTest, IsToStopOnlyWhereTheLengthIsThePolicysAndNobodyWaits) {
  Rate({}, {}, std::nullopt, 200);
  policy_.Begin();
  EXPECT_TRUE(policy_.Choose(generation_).stop) << "alone";
  policy_.Begin();
  EXPECT_FALSE(policy_.Choose(generation_).stop) << "others would wait for it";
  policy_.End();
  for (auto change : {+[](Request& request) { request.adaptive = false; },
                      +[](Request& request) { request.drafter = v1::DRAFTER_KIND_NGRAM; }}) {
    Request request = MakeRequest();
    change(request);
    Generation other(std::move(request), tokenizer_.get(), Clock::now());
    Commit({}, other);
    EXPECT_FALSE(policy_.Choose(other).stop);
    EXPECT_GT(policy_.Choose(other).most, 0);
  }
  policy_.End();
}

TEST_F(DraftThatStopsTest, StopsSoonerWhereAGenerationIsHarderThanItsConfidenceSays) {
  Rate({}, {}, std::nullopt, 1000);
  policy_.Begin();
  Generation easy(MakeRequest(), tokenizer_.get(), Clock::now());
  Generation hard(MakeRequest(), tokenizer_.get(), Clock::now());
  for (int i = 0; i < 60; ++i) {
    Drafted outcome = Draft({.most = 1, .stop = DraftStop()}, {.sure = 1});
    outcome.accepted = 1;
    Commit(outcome, easy);
    outcome.accepted = i % 2;
    Commit(outcome, hard);
  }
  EXPECT_LT(policy_.Choose(hard).stop->acceptance.back(),
            policy_.Choose(easy).stop->acceptance.back() - 0.02);
  policy_.End();
}

// Drafts are long where the draft is sure, so a mean over their tokens says nothing about other tokens.
TEST_F(DraftThatStopsTest, TokensThatOnlyASureDraftHasDoNotMakeItLookBetter) {
  const Machine machine{.verify_us = 300};
  Rate(machine, {.sure = 0.3, .accepted_if_sure = 0.98, .accepted_if_not = 0.1, .persistent = true},
       std::nullopt);
  policy_.Begin();
  ASSERT_TRUE(policy_.Choose(generation_).stop);
  policy_.Begin();
  EXPECT_LE(policy_.Choose(generation_).most, 2) << "as for .36; .8 of the judged tokens were accepted";
  policy_.End();
  policy_.End();
}

}  // namespace
}  // namespace outrider
