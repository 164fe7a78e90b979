// What the coordinator's metrics count for a round and for a request.
#include "coordinator/decode/metrics.h"

#include <gmock/gmock.h>
#include <prometheus/registry.h>

#include <algorithm>

#include "coordinator/generation/generation.h"
#include "tests/unit/test_tokenizer.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;

Proposal ChainOf(size_t length) {
  Proposal proposal;
  for (size_t i = 0; i < length; ++i) AppendToChain(7, {}, proposal);
  return proposal;
}

class MetricsTest : public ::testing::Test {
 protected:
  struct Round {
    size_t drafted = 0, accepted = 0;
    int chosen = 0;  // K that was asked for
    DraftStatus draft_status = DraftStatus::kUsable;
    int running = 1;  // generations in progress
    Clock::duration time{};
    v1::DrafterKind drafter = v1::DRAFTER_KIND_MODEL;
  };

  // Starts the generation of the rounds from now on, and counts the round of its prompt.
  void Begin(v1::Rule rule = v1::RULE_TOKEN, double lenience = 1, int max_tokens = 1000) {
    Request request;
    request.prompt = {1, 2, 3};
    request.max_tokens = max_tokens;
    request.params.set_rule(rule);
    if (lenience < 1) request.params.set_lenience(static_cast<float>(lenience));
    generation_ = std::make_unique<Generation>(std::move(request), &TestTokenizer(), Clock::now());
    Count({});
  }
  void Count(const Round& round) {
    const Proposal proposal = ChainOf(round.drafted);
    Verdict verdict;
    verdict.path = ChainPath(round.accepted);
    verdict.token = 8;
    verdict.kind = round.drafted == 0                ? Verdict::Kind::kPlain
                   : round.accepted == round.drafted ? Verdict::Kind::kBonus
                                                     : Verdict::Kind::kCorrected;
    verdict.expected_accepted = 0.5 * static_cast<double>(round.drafted);
    verdict.expected_variance = 0.25;
    const v1::GenerateResponse chunk = generation_->Commit(proposal, verdict);
    RoundTimes times;
    times.round = round.time;
    times.draft = round.time / 4;
    times.draft_server.set_queue_us(1);
    metrics_.OnRound({.generation = generation_.get(),
                      .proposal = &proposal,
                      .verdict = &verdict,
                      .drafter = round.drafter,
                      .draft_status = round.draft_status,
                      .chosen = round.chosen,
                      .emitted = chunk.tokens_size(),
                      .running = round.running,
                      .proposal_bytes = 0,
                      .times = times});
    metrics_.OnEmitted(chunk);
  }

  const prometheus::ClientMetric& Series(const std::string& name, const std::string& label = "") {
    collected_ = registry_.Collect();
    for (const auto& family : collected_) {
      if (family.name != "outrider_" + name) continue;
      for (const auto& metric : family.metric) {
        const bool has = std::any_of(metric.label.begin(), metric.label.end(),
                                     [&](const auto& l) { return l.value == label; });
        if (label.empty() || has) return metric;
      }
    }
    ADD_FAILURE() << "no metric " << name << " " << label;
    static const prometheus::ClientMetric none;
    return none;
  }
  double Counter(const std::string& name, const std::string& label = "") {
    return Series(name, label).counter.value;
  }
  // A counter with two labels.
  double WithLabels(const std::string& name, const std::string& first, const std::string& second) {
    for (const auto& family : registry_.Collect()) {
      if (family.name != "outrider_" + name) continue;
      for (const auto& metric : family.metric) {
        if (metric.label[0].value == first && metric.label[1].value == second) return metric.counter.value;
      }
    }
    ADD_FAILURE() << "no series " << first << " " << second;
    return -1;
  }
  double RoundSeconds(const std::string& mode, const std::string& running) {
    return WithLabels("spec_decode_round_seconds_total", mode, running);
  }
  // The values of a counter at the first positions.
  std::vector<double> AtPositions(const std::string& name, int count) {
    std::vector<double> values;
    for (int i = 0; i < count; ++i) values.push_back(Counter(name, std::to_string(i)));
    return values;
  }

  prometheus::Registry registry_;
  std::vector<prometheus::MetricFamily> collected_;
  Metrics metrics_{registry_, 4};
  std::unique_ptr<Generation> generation_;
};

TEST_F(MetricsTest, CountWhatWasDraftedAndNotWhatWasAskedFor) {
  Begin();
  Count({.drafted = 3, .accepted = 1, .chosen = 5});
  EXPECT_EQ(Counter("spec_decode_num_drafts_total"), 1);
  EXPECT_EQ(Counter("spec_decode_num_draft_tokens_total"), 3);
  EXPECT_EQ(Counter("spec_decode_num_accepted_tokens_total"), 1);
  EXPECT_EQ(Series("spec_decode_chosen_draft_tokens").histogram.sample_sum, 5);
  EXPECT_EQ(generation_->stats().drafted(), 3u);
  const v1::SpeculationTotals totals = metrics_.Totals();
  EXPECT_EQ(totals.drafted(), 3u);
  EXPECT_EQ(totals.rounds(), 2u) << "the prompt's is one";
  EXPECT_EQ(totals.drafts(), 1u);
  EXPECT_EQ(totals.emitted(), 3u);
}

TEST_F(MetricsTest, CountDraftedAndAcceptedTokensAtEachPosition) {
  Begin();
  Count({.drafted = 3, .accepted = 1, .chosen = 3});
  Count({.drafted = 2, .accepted = 2, .chosen = 2});
  EXPECT_THAT(AtPositions("spec_decode_num_draft_tokens_per_pos_total", 4), ElementsAre(2, 2, 1, 0));
  EXPECT_THAT(AtPositions("spec_decode_num_accepted_tokens_per_pos_total", 4), ElementsAre(2, 1, 0, 0));
  EXPECT_THAT(generation_->stats().drafted_per_position(), ElementsAre(2, 2, 1));
  EXPECT_THAT(generation_->stats().accepted_per_position(), ElementsAre(2, 1, 0));
}

TEST_F(MetricsTest, CompareAcceptanceWithItsExpectationWhereThereIsOne) {
  Begin();
  Count({.drafted = 4, .accepted = 3, .chosen = 4});
  const auto expect_counts = [this] {
    EXPECT_EQ(Counter("spec_decode_observed_accepted_tokens_total"), 3);
    EXPECT_EQ(Counter("spec_decode_expected_accepted_tokens_total"), 2);
    EXPECT_EQ(Counter("spec_decode_expected_accepted_tokens_variance_total"), 0.25);
  };
  expect_counts();
  // There is no expectation for lenient rounds, nor for other rules.
  Begin(v1::RULE_TOKEN, /*lenience=*/0.5);
  Count({.drafted = 4, .accepted = 4, .chosen = 4});
  for (const v1::Rule rule : {v1::RULE_BLOCK, v1::RULE_COUPLED}) {
    Begin(rule);
    Count({.drafted = 4, .accepted = 4, .chosen = 4});
  }
  expect_counts();
  EXPECT_EQ(Counter("spec_decode_num_accepted_tokens_total"), 15) << "all are counted otherwise";
}

TEST_F(MetricsTest, CountWhatWasAcceptedBehindTheEndByItself) {
  Begin(v1::RULE_TOKEN, /*lenience=*/1, /*max_tokens=*/3);
  Count({.drafted = 5, .accepted = 4, .chosen = 5});
  EXPECT_EQ(Counter("spec_decode_num_accepted_tokens_total"), 2);
  EXPECT_EQ(Counter("spec_decode_num_accepted_tokens_after_end_total"), 2);
  EXPECT_THAT(AtPositions("spec_decode_num_accepted_tokens_per_pos_total", 4), ElementsAre(1, 1, 0, 0));
  EXPECT_EQ(WithLabels("spec_decode_num_accepted_tokens_by_drafter_total", "model", "token"), 2);
  EXPECT_EQ(Counter("spec_decode_observed_accepted_tokens_total"), 4) << "its expectation knows of no end";
}

TEST_F(MetricsTest, CountEmittedTokensByTheirKind) {
  Begin();
  Count({.drafted = 3, .accepted = 2, .chosen = 3});
  Count({.drafted = 1, .accepted = 1, .chosen = 1});
  const auto emitted = [this](const char* kind) {
    return Counter("spec_decode_num_emitted_tokens_total", kind);
  };
  EXPECT_EQ(emitted("accepted"), 3);
  EXPECT_EQ(emitted("corrected"), 1);
  EXPECT_EQ(emitted("bonus"), 1);
  EXPECT_EQ(emitted("plain"), 1) << "of the prompt's round";
  EXPECT_EQ(Counter("generation_tokens_total"), 6);
}

TEST_F(MetricsTest, TellRoundsOfThePromptPlainOnesAndThoseWhoseDraftFailedApart) {
  const auto rounds = [this](const char* kind) {
    return Series("round_duration_seconds", kind).histogram.sample_count;
  };
  Begin();
  Count({});
  Count({.chosen = 4, .draft_status = DraftStatus::kFailed});
  Count({.chosen = 4, .draft_status = DraftStatus::kAway});
  for (int i = 0; i < 3; ++i) Count({.drafted = 1, .chosen = 1});
  EXPECT_EQ(rounds("prefill"), 1u);
  EXPECT_EQ(rounds("plain"), 1u);
  EXPECT_EQ(rounds("draft_failed"), 2u);
  EXPECT_EQ(rounds("speculative"), 3u);
}

TEST_F(MetricsTest, TheTimePerTokenIsThatOfTheTokensAfterTheFirst) {
  metrics_.OnSampleEnd({.tokens = 4, .first_token_seconds = 5, .decode_seconds = 6});
  metrics_.OnSampleEnd({.tokens = 1, .first_token_seconds = 5, .decode_seconds = 0});
  const prometheus::ClientMetric::Histogram per_token = Series("time_per_output_token_seconds").histogram;
  EXPECT_EQ(per_token.sample_count, 1u) << "one token alone took no time of its own";
  EXPECT_DOUBLE_EQ(per_token.sample_sum, 2);
}

TEST_F(MetricsTest, TokensResumedFromTookNoTime) {
  Request request;
  request.prompt = {1, 2, 3};
  request.resumed = {4, 5, 6, 7};
  request.max_tokens = 1000;
  generation_ = std::make_unique<Generation>(std::move(request), &TestTokenizer(), Clock::now());
  EXPECT_EQ(generation_->progress().tokens, 0);
  Count({});
  Count({.drafted = 2, .accepted = 1, .chosen = 2});
  EXPECT_EQ(generation_->progress().tokens, 3);
}

TEST_F(MetricsTest, CountDraftsWhoseFirstTokenWasAcceptedWhateverKWas) {
  Begin();
  Count({.drafted = 5, .accepted = 2, .chosen = 5});
  Count({.drafted = 1, .accepted = 1, .chosen = 1});
  Count({.drafted = 3, .accepted = 0, .chosen = 3});
  EXPECT_EQ(WithLabels("spec_decode_num_drafts_by_drafter_total", "model", "token"), 3);
  EXPECT_EQ(WithLabels("spec_decode_num_accepted_drafts_by_drafter_total", "model", "token"), 2);
}

// Waiting for the target's own drafts counts as for any draft, but they are no items of a draft server.
TEST_F(MetricsTest, CountWhatTheTargetDraftsByItsNameToo) {
  constexpr std::chrono::seconds kSecond{1};
  const auto draft_seconds = [this] { return Series("round_draft_seconds").histogram; };
  const auto items = [this] { return Series("round_queue_seconds", "draft").histogram.sample_count; };
  Begin();
  Count({.drafted = 2, .accepted = 1, .chosen = 2, .drafter = v1::DRAFTER_KIND_NGRAM});
  EXPECT_EQ(draft_seconds().sample_count, 0u);
  for (const char* name : {"medusa", "blockwise", "eagle", "layer_skip", "pass"}) {
    EXPECT_EQ(WithLabels("spec_decode_num_draft_tokens_by_drafter_total", name, "token"), 0);
  }
  Count({.drafted = 2, .accepted = 1, .chosen = 2, .time = 4 * kSecond, .drafter = v1::DRAFTER_KIND_EAGLE});
  Count({.chosen = 2, .draft_status = DraftStatus::kFailed, .drafter = v1::DRAFTER_KIND_EAGLE});
  EXPECT_EQ(WithLabels("spec_decode_num_draft_tokens_by_drafter_total", "eagle", "token"), 2);
  EXPECT_EQ(draft_seconds().sample_count, 2u);
  EXPECT_EQ(draft_seconds().sample_sum, 1);
  EXPECT_EQ(items(), 0u);
  Count({.drafted = 2, .accepted = 1, .chosen = 2});
  EXPECT_EQ(items(), 1u);
}

TEST_F(MetricsTest, TheSpeedUpComparesRoundsOfAsManyGenerations) {
  constexpr std::chrono::seconds kSecond{1};
  Begin();
  Count({.drafted = 3, .accepted = 2, .chosen = 3, .running = 1, .time = 2 * kSecond});
  Count({.chosen = 3, .draft_status = DraftStatus::kFailed, .running = 1, .time = 5 * kSecond});
  Count({.running = 1, .time = kSecond});
  EXPECT_EQ(RoundSeconds("speculative", "1"), 7) << "a draft that failed is a cost of drafting";
  EXPECT_EQ(RoundSeconds("plain", "1"), 1);
  // Three generations run, of which the others drafted until a moment ago.
  Count({.drafted = 3, .accepted = 0, .chosen = 3, .running = 3, .time = 2 * kSecond});
  Count({.running = 3, .time = 20 * kSecond});
  Count({.running = 3, .time = 20 * kSecond});
  EXPECT_EQ(RoundSeconds("plain", "4"), 0);
  Count({.running = 3, .time = 4 * kSecond});
  EXPECT_EQ(RoundSeconds("plain", "4"), 4);
  EXPECT_EQ(RoundSeconds("speculative", "4"), 2);
  EXPECT_EQ(RoundSeconds("speculative", "1"), 7);
  // The draft could not be asked, so drafting cost nothing.
  Count({.chosen = 3, .draft_status = DraftStatus::kAway, .running = 1000, .time = 4 * kSecond});
  EXPECT_EQ(RoundSeconds("speculative", "+Inf"), 0);
}

}  // namespace
}  // namespace outrider
