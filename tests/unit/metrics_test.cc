// What the coordinator's metrics count of a round and of a request.
#include "coordinator/rounds/metrics.h"

#include <gmock/gmock.h>
#include <prometheus/registry.h>

#include <algorithm>

#include "coordinator/rounds/generation.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;

const Tokenizer& TestTokenizer() {
  static const Tokenizer* tokenizer =
      Tokenizer::Load("tests/data/text/gpt2-small.tokenizer.json").value().release();
  return *tokenizer;
}

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
    DraftOutcome outcome = DraftOutcome::kUsable;
  };

  // The generation of the rounds from now on; the round of its prompt is over.
  void Begin(v1::Rule rule = v1::RULE_TOKEN, double lenience = 1) {
    Request request;
    request.prompt = {1, 2, 3};
    request.max_tokens = 1000;
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
    metrics_.OnRound({.generation = generation_.get(),
                      .proposal = &proposal,
                      .verdict = &verdict,
                      .drafter = v1::DRAFTER_KIND_MODEL,
                      .outcome = round.outcome,
                      .chosen = round.chosen,
                      .proposal_bytes = 0,
                      .times = {}});
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
  // Of the first positions.
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
  // Neither is there an expectation for lenient rounds, nor for other rules.
  Begin(v1::RULE_TOKEN, /*lenience=*/0.5);
  Count({.drafted = 4, .accepted = 4, .chosen = 4});
  for (const v1::Rule rule : {v1::RULE_BLOCK, v1::RULE_COUPLED}) {
    Begin(rule);
    Count({.drafted = 4, .accepted = 4, .chosen = 4});
  }
  expect_counts();
  EXPECT_EQ(Counter("spec_decode_num_accepted_tokens_total"), 15) << "all are counted otherwise";
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
  Count({.chosen = 4, .outcome = DraftOutcome::kFailed});
  Count({.chosen = 4, .outcome = DraftOutcome::kAway});
  for (int i = 0; i < 3; ++i) Count({.drafted = 1, .chosen = 1});
  EXPECT_EQ(rounds("prefill"), 1u);
  EXPECT_EQ(rounds("plain"), 1u);
  EXPECT_EQ(rounds("draft_failed"), 2u);
  EXPECT_EQ(rounds("speculative"), 3u);
}

TEST_F(MetricsTest, TheTimePerTokenIsThatOfTheTokensAfterTheFirst) {
  v1::Finish finish;
  finish.mutable_usage()->set_completion_tokens(4);
  finish.mutable_usage()->set_first_token_seconds(5);
  finish.mutable_usage()->set_decode_seconds(6);
  metrics_.OnFinish(finish, 11);
  finish.mutable_usage()->set_completion_tokens(1);
  metrics_.OnFinish(finish, 5);
  const prometheus::ClientMetric::Histogram per_token = Series("time_per_output_token_seconds").histogram;
  EXPECT_EQ(per_token.sample_count, 1u) << "one token alone took no time of its own";
  EXPECT_DOUBLE_EQ(per_token.sample_sum, 2);
  EXPECT_DOUBLE_EQ(Series("time_to_first_token_seconds").histogram.sample_sum, 10);
  EXPECT_DOUBLE_EQ(Series("e2e_request_latency_seconds").histogram.sample_sum, 16);
}

}  // namespace
}  // namespace outrider
