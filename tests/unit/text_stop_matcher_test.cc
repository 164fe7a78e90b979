#include "common/text/stop_matcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <string>
#include <vector>

#include "common/text/utf8.h"
#include "tests/unit/some_of.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;
using Strings = std::vector<std::string>;

StopMatcher MatcherFor(const Strings& stops) {
  auto matcher = StopMatcher::Create(stops);
  EXPECT_TRUE(matcher.ok()) << matcher.status();
  return *std::move(matcher);
}

struct Outcome {
  Strings emitted;  // one for each piece, then Flush's
  std::optional<StopMatch> match;

  std::string text() const {
    std::string joined;
    for (const std::string& part : emitted) joined += part;
    return joined;
  }
};

Outcome Feed(const Strings& stops, const Strings& pieces) {
  StopMatcher matcher = MatcherFor(stops);
  Outcome outcome;
  for (const std::string& piece : pieces) outcome.emitted.push_back(matcher.Append(piece));
  outcome.emitted.push_back(matcher.Flush());
  outcome.match = matcher.match();
  return outcome;
}

TEST(StopMatcher, WithoutStopStringsPassesEverythingAtOnce) {
  EXPECT_THAT(Feed({}, {"a", "", "bc"}).emitted, ElementsAre("a", "", "bc", ""));
}

TEST(StopMatcher, HoldsBackOnlyWhatMayBecomeAStopString) {
  EXPECT_THAT(Feed({"</s>"}, {"a<", "b", "x</", "s", "y<"}).emitted,
              ElementsAre("a", "<b", "x", "", "</sy", "<"));
}

TEST(StopMatcher, EmitsNothingOfTheStopStringOrAfterIt) {
  const Outcome outcome = Feed({"END"}, {"one E", "N", "D two", "three"});
  EXPECT_THAT(outcome.emitted, ElementsAre("one ", "", "", "", ""));
  ASSERT_TRUE(outcome.match.has_value());
  EXPECT_EQ(outcome.match->stop_index, 0);
  EXPECT_EQ(outcome.match->text_size, 4);
}

TEST(StopMatcher, NamesThePieceThatCompletedTheMatch) {
  EXPECT_EQ(Feed({"\n\n"}, {"a", "\n", "", "\nb"}).match->piece, 3);
  EXPECT_EQ(Feed({"\n\n"}, {"\n\n"}).match->piece, 0);
}

TEST(StopMatcher, TheMatchThatCompletesFirstWins) {
  const Outcome outcome = Feed({"abcd", "c"}, {"xabcd"});
  EXPECT_EQ(outcome.match->stop_index, 1);
  EXPECT_EQ(outcome.text(), "xab");
}

TEST(StopMatcher, TheLongestWinsAmongThoseThatEndTogether) {
  const Outcome outcome = Feed({"c", "abc", "bc"}, {"xab", "c"});
  EXPECT_EQ(outcome.match->stop_index, 1);
  EXPECT_EQ(outcome.text(), "x");
}

TEST(StopMatcher, FindsAStopStringInsideAnotherOnesPrefix) {
  EXPECT_EQ(Feed({"aaab", "aac"}, {"aaac"}).text(), "a");
  EXPECT_EQ(Feed({"abab!", "bax"}, {"ab", "ab", "ax"}).text(), "aba");
}

TEST(StopMatcher, AStopStringThatEndsTooEarlyIsText) {
  StopMatcher matcher = *StopMatcher::Create(std::vector<std::string>{"ab"});
  EXPECT_EQ(matcher.Append("xab", /*counts=*/false), "x");
  EXPECT_EQ(matcher.Append("ca", /*counts=*/false), "abc");
  EXPECT_FALSE(matcher.match().has_value());
  EXPECT_EQ(matcher.Append("b"), "") << "it began too early, and ends late enough";
  EXPECT_EQ(matcher.match()->text_size, 4u);
}

TEST(StopMatcher, RefusesWhatCannotBeAStopString) {
  for (const Strings& stops : {Strings{""}, Strings{"ok", "\xE2\x82"}, Strings{std::string(5000, 'x')},
                               Strings(StopMatcher::kMaxStopStrings + 1, "x")}) {
    EXPECT_EQ(StopMatcher::Create(stops).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

// The definition, by brute force: tries every end, and every stop string there.
Outcome Reference(const Strings& stops, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    int longest = -1;
    for (size_t i = 0; i < stops.size(); ++i) {
      if (std::string_view(text).substr(0, end).ends_with(stops[i]) &&
          (longest < 0 || stops[i].size() > stops[longest].size())) {
        longest = static_cast<int>(i);
      }
    }
    if (longest >= 0) {
      const size_t size = end - stops[longest].size();
      return {{text.substr(0, size)}, StopMatch{.stop_index = longest, .piece = 0, .text_size = size}};
    }
  }
  return {{text}, std::nullopt};
}

TEST(StopMatcher, AgreesWithTheDefinitionHoweverTextIsCut) {
  static constexpr std::string_view kLetters[] = {"a", "b", "\u00e9"};
  std::mt19937 random(6);
  auto random_text = [&](size_t size) {
    std::string text;
    while (size-- > 0) text += kLetters[random() % 3];
    return text;
  };
  for (int i = 0; i < 3000; ++i) {
    Strings stops(random() % 5);
    for (std::string& stop : stops) stop = random_text(1 + random() % 6);
    Strings pieces(random() % 20);
    std::string text;
    for (std::string& piece : pieces) text += piece = random_text(random() % 4);

    const Outcome outcome = Feed(stops, pieces);
    const Outcome expected = Reference(stops, text);
    EXPECT_EQ(outcome.text(), expected.text());
    ASSERT_EQ(outcome.match.has_value(), expected.match.has_value());
    if (outcome.match.has_value()) {
      EXPECT_EQ(outcome.match->stop_index, expected.match->stop_index);
      EXPECT_EQ(outcome.match->text_size, expected.match->text_size);
    }
    for (const std::string& part : outcome.emitted) EXPECT_TRUE(IsValidUtf8(part));
  }
}

// Finishes only if a stream of near matches takes linear time.
TEST(StopMatcher, LongStreamOfNearMatchesEnds) {
  std::string stop(4000, 'a');
  stop += 'b';
  StopMatcher matcher = MatcherFor({stop});
  size_t emitted = 0;
  const int count = SomeOf(1'000'000);
  for (int i = 0; i < count; ++i) emitted += matcher.Append("a").size();
  EXPECT_EQ(emitted, static_cast<size_t>(count) - 4000);
  EXPECT_EQ(matcher.Flush().size(), 4000);
}

}  // namespace
}  // namespace outrider
