#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/cli/flags.h"
#include "client/cli/metrics_page.h"

namespace outrider {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::Optional;

TEST(MetricsPage, ReadsNamesLabelsAndValues) {
  const MetricsPage page = MetricsPage::Parse(
      "# HELP a says # {nothing}\n"
      "# TYPE a counter\n"
      "a{x=\"1\",y=\"left\"} 2\n"
      "a{x=\"1\",y=\"right\"} 3.5\n"
      "a{x=\"2\",y=\"q\\\"u\\\\o\\nte\"} 1e1 1700000000000\n"
      "b 7\n"
      "not a sample\n"
      "c{x=\"open 1\n");
  EXPECT_EQ(page.Sum("a"), 15.5);
  EXPECT_EQ(page.Sum("a", {{"x", "1"}}), 5.5);
  EXPECT_EQ(page.Sum("a", {{"x", "1"}, {"y", "right"}}), 3.5);
  EXPECT_EQ(page.Sum("a", {{"y", "q\"u\\o\nte"}}), 10);
  EXPECT_EQ(page.Sum("a", {{"z", "1"}}), 0);
  EXPECT_EQ(page.Sum("b"), 7);
  EXPECT_EQ(page.Sum("c"), 0);
  EXPECT_EQ(page.By("a", "x"), (std::map<std::string, double>{{"1", 5.5}, {"2", 10}}));
}

TEST(MetricsChange, IsWhatHappenedInBetween) {
  const MetricsPage before = MetricsPage::Parse("good 10\nall 20\n");
  const MetricsPage after = MetricsPage::Parse("good 13\nall 24\n");
  const MetricsChange change{before, after};
  EXPECT_EQ(change.Increase("good"), 3);
  EXPECT_THAT(change.Ratio("good", "all"), Optional(0.75));
  EXPECT_EQ((MetricsChange{after, after}.Ratio("good", "all")), std::nullopt);
}

TEST(MetricsChange, QuantilesAreInterpolatedWithinTheirBucket) {
  const MetricsPage before = MetricsPage::Parse(
      "h_bucket{le=\"1\"} 5\nh_bucket{le=\"2\"} 5\nh_bucket{le=\"10\"} 5\nh_bucket{le=\"+Inf\"} 5\n"
      "h_sum 1\nh_count 5\n");
  // New values since then: 4 between 1 and 2, 4 between 2 and 10, 2 above.
  const MetricsPage after = MetricsPage::Parse(
      "h_bucket{le=\"1\"} 5\nh_bucket{le=\"2\"} 9\nh_bucket{le=\"10\"} 13\nh_bucket{le=\"+Inf\"} 15\n"
      "h_sum 61\nh_count 15\n");
  const MetricsChange change{before, after};
  EXPECT_THAT(change.Quantile("h", 0.2), Optional(1.5));
  EXPECT_THAT(change.Quantile("h", 0.6), Optional(6));
  EXPECT_THAT(change.Quantile("h", 0.95), Optional(10));  // all that is known is that it is larger
  EXPECT_THAT(change.Mean("h"), Optional(6));
  EXPECT_EQ((MetricsChange{after, after}.Quantile("h", 0.5)), std::nullopt);
}

MetricsPages Pages(const std::string& coordinator, const std::string& target) {
  MetricsPages pages;
  pages[kCoordinator] = MetricsPage::Parse(coordinator);
  pages[kTarget] = MetricsPage::Parse(target);
  return pages;
}

TEST(TopView, SaysWhatHappened) {
  const MetricsPages before = Pages("", "");
  const MetricsPages after = Pages(
      "outrider_requests_running 3\n"
      "outrider_requests_waiting 5\n"
      "outrider_requests_limit 256\n"
      "outrider_requests_total{code=\"OK\"} 4\n"
      "outrider_requests_total{code=\"CANCELLED\"} 2\n"
      "outrider_target_up 1\n"
      "outrider_degraded 1\n"
      "outrider_generation_tokens_total 300\n"
      "outrider_spec_decode_num_drafts_total 50\n"
      "outrider_spec_decode_num_draft_tokens_total 100\n"
      "outrider_spec_decode_num_accepted_tokens_total 75\n"
      "outrider_spec_decode_num_draft_tokens_per_pos_total{position=\"0\"} 50\n"
      "outrider_spec_decode_num_accepted_tokens_per_pos_total{position=\"0\"} 40\n"
      "outrider_spec_decode_num_draft_tokens_per_pos_total{position=\"1\"} 50\n"
      "outrider_spec_decode_num_accepted_tokens_per_pos_total{position=\"1\"} 35\n"
      "outrider_spec_decode_observed_accepted_tokens_total 74\n"
      "outrider_spec_decode_expected_accepted_tokens_total 74\n"
      "outrider_spec_decode_chosen_draft_tokens_bucket{le=\"0\"} 10\n"
      "outrider_spec_decode_chosen_draft_tokens_bucket{le=\"2\"} 40\n"
      "outrider_spec_decode_chosen_draft_tokens_bucket{le=\"+Inf\"} 40\n"
      "outrider_spec_decode_chosen_draft_tokens_count 40\n",
      "outrider_target_step_duration_seconds_sum 1.5\n"
      "outrider_target_step_duration_seconds_count 60\n"
      "outrider_target_kv_blocks_used 10\n"
      "outrider_target_kv_blocks_free 30\n");
  const std::string view = TopView(before, after, 2);
  EXPECT_THAT(view, HasSubstr("3 running of at most 256, 5 waiting; ended 3.0/s, not OK 1.0/s"));
  EXPECT_THAT(view, HasSubstr("target up, draft DOWN: decoding is plain"));
  EXPECT_THAT(view, HasSubstr("150.0/s out"));
  EXPECT_THAT(view, HasSubstr("75.0 %, mean length 2.50; since the start observed / expected 1.000"));
  EXPECT_THAT(view, HasSubstr(" 0 80.0 %"));
  EXPECT_THAT(view, HasSubstr(" 1 70.0 %"));
  EXPECT_THAT(view, HasSubstr("0: 25 %, 2: 75 %"));
  EXPECT_THAT(view, HasSubstr("computes 75.0 % of the time, 30.0 passes/s"));
  EXPECT_THAT(view, HasSubstr("KV blocks 25.0 % used"));
  EXPECT_THAT(view, HasSubstr("draft       no answer"));
}

TEST(TopView, DoesNotSpeakOfADraftThatTheCoordinatorDoesNotHave) {
  MetricsPages pages = Pages("outrider_target_up 1\noutrider_draft_up 0\noutrider_degraded 0\n", "");
  EXPECT_THAT(TopView(pages, pages, 2), HasSubstr("target up\n"));
  EXPECT_THAT(TopView(pages, pages, 2), Not(HasSubstr("draft ")));
  pages[kDraft] = MetricsPage::Parse("outrider_draft_sequences 1\n");  // not this coordinator's draft
  EXPECT_THAT(TopView(pages, pages, 2), Not(HasSubstr("draft ")));
  pages[kCoordinator] = std::nullopt;
  EXPECT_THAT(TopView(pages, pages, 2), HasSubstr("\ndraft "));
}

TEST(TopView, CountsFromZeroAfterARestart) {
  const MetricsPages before =
      Pages("process_start_time_seconds 100\noutrider_generation_tokens_total 5000\n", "");
  const MetricsPages after =
      Pages("process_start_time_seconds 101\noutrider_generation_tokens_total 30\n", "");
  EXPECT_THAT(TopView(before, after, 2), HasSubstr("15.0/s out"));
}

TEST(TopView, HasNoNumberForWhatDidNotHappen) {
  const MetricsPages idle = Pages("outrider_target_up 1\n", "");
  EXPECT_THAT(TopView(idle, idle, 2), Not(HasSubstr("nan")));
  EXPECT_THAT(TopView(idle, idle, 2), HasSubstr("acceptance  - %, mean length -"));
}

}  // namespace
}  // namespace outrider
