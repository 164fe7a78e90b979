#include "client/cli/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <string>
#include <vector>

namespace outrider {
namespace {

using testing::HasSubstr;
using testing::Not;

struct Times {
  uint32_t draft, draft_compute, verify, verify_compute;
};

v1::RoundTrace Round(const Times& times, const std::vector<std::string>& drafted, const std::string& own) {
  v1::RoundTrace round;
  for (const std::string& text : drafted) {
    round.add_drafted(1);
    round.add_drafted_text(text);
  }
  round.set_accepted(static_cast<uint32_t>(drafted.size()));
  round.set_token_text(own);
  round.set_kind(v1::TOKEN_KIND_BONUS);
  round.set_draft_us(times.draft);
  round.set_draft_compute_us(times.draft_compute);
  round.set_verify_us(times.verify);
  round.set_verify_compute_us(times.verify_compute);
  round.set_round_us(times.draft + times.verify);
  return round;
}

struct Bar {
  double x, width;
};

std::vector<Bar> BarsOf(const std::string& svg, const std::string& kind) {
  const std::regex bar("<rect class=\"" + kind + "\" x=\"([\\d.]+)\" y=\"[\\d.]+\" width=\"([\\d.]+)\"");
  std::vector<Bar> bars;
  for (std::sregex_iterator i(svg.begin(), svg.end(), bar), end; i != end; ++i) {
    bars.push_back({std::stod((*i)[1]), std::stod((*i)[2])});
  }
  return bars;
}

TEST(Timeline, BarsFollowEachOtherOnOneScaleOfTime) {
  const std::string svg = TimelineSvg({TracedAnswer{"drafted",
                                                    {Round({2000, 1000, 4000, 3000}, {"a", "b"}, "c"),
                                                     Round({2000, 2000, 4000, 4000}, {"d"}, "e")}},
                                       TracedAnswer{"plain", {Round({0, 0, 6000, 6000}, {}, "a")}}});
  const std::vector<Bar> draft = BarsOf(svg, "draft");
  const std::vector<Bar> target = BarsOf(svg, "target");
  ASSERT_EQ(draft.size(), 2);
  ASSERT_EQ(target.size(), 3);
  const double millisecond = draft[0].width;
  EXPECT_NEAR(draft[1].width, 2 * millisecond, .1);
  EXPECT_NEAR(target[0].width, 3 * millisecond, .1);
  EXPECT_NEAR(target[0].x - draft[0].x, 2 * millisecond, .1) << "half a millisecond on the wire, twice";
  EXPECT_NEAR(draft[1].x - draft[0].x, 5.5 * millisecond, .1) << "a round takes six";
  EXPECT_NEAR(target[2].width, 6 * millisecond, .1) << "the scale of the answer above";
}

TEST(Timeline, ARoundNamesItsTokensWhateverTheyAre) {
  const std::string svg =
      TimelineSvg({TracedAnswer{"a & b", {Round({1, 1, 1, 1}, {"</title>", "\x1b[2J\n"}, "<g>")}}});
  EXPECT_THAT(svg, HasSubstr("drafted 2, accepted 2: &lt;/title&gt;|\uFFFD[2J↵; bonus"));
  EXPECT_THAT(svg, HasSubstr("bonus: &lt;g&gt;"));
  EXPECT_THAT(svg, HasSubstr("a &amp; b"));
  EXPECT_THAT(svg, Not(HasSubstr("\x1b")));
}

TEST(Timeline, AnAnswerOfManyRoundsHasAnAxisThatCanBeRead) {
  TracedAnswer answer{"long", {}};
  for (int i = 0; i < 2000; ++i) answer.rounds.push_back(Round({1000, 900, 9000, 8000}, {"a"}, "b"));
  const std::string svg = TimelineSvg({answer});
  const std::regex tick("<text class=\"tick\"");
  const auto ticks =
      std::distance(std::sregex_iterator(svg.begin(), svg.end(), tick), std::sregex_iterator());
  EXPECT_GE(ticks, 5);
  EXPECT_LE(ticks, 24);
}

TEST(Timeline, AnAnswerWithoutRoundsIsDrawnEmpty) {
  EXPECT_THAT(TimelineSvg({TracedAnswer{"none", {}}}), HasSubstr("none: 0.0 ms, 0 rounds"));
}

TEST(Timeline, AFileThatCannotBeWrittenIsNamed) {
  EXPECT_THAT(WriteTimeline("/no/such/folder/t.svg", {}).message(), HasSubstr("/no/such/folder/t.svg"));
}

}  // namespace
}  // namespace outrider
