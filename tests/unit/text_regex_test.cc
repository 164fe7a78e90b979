#include "common/text/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace outrider {
namespace {

using ::testing::HasSubstr;

Regex MustCompile(const std::string& pattern) {
  return Regex::Compile(pattern, Regex::Syntax::kPattern).value();
}

constexpr size_t kMegabyte = 1 << 20;

std::string Word(size_t size, char end) {
  std::string text(size, 'a');
  text += end;
  return text;
}

class RunawayPattern : public ::testing::TestWithParam<const char*> {};

TEST_P(RunawayPattern, IsAnErrorNotAHang) {
  const Regex regex = MustCompile(GetParam());
  for (const size_t size : {size_t{40}, size_t{3000}, kMegabyte / 16}) {
    const absl::Status status = regex.ForEachMatch(Word(size, '!'), [](size_t, size_t) {});
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << size;
    EXPECT_THAT(std::string(status.message()), HasSubstr("does not come to an end"));
  }
}

INSTANTIATE_TEST_SUITE_P(Regex, RunawayPattern,
                         ::testing::Values("(?:a+)+[bc]", "(?:a|a)+[bc]", "(?:a|aa)+[bc]", "(?:a*)*[bc]",
                                           "(?=(?:a+)+[bc])a"));

// These patterns would take n^2 steps or more.
TEST(Regex, APatternThatIsSlowOnALongWordIsAnError) {
  for (const char* pattern : {"a*a*a*[bc]", "a+(?!a)[bc]", "[ab]*a{9}[bc]"}) {
    const absl::Status status =
        MustCompile(pattern).ForEachMatch(Word(kMegabyte / 16, 'a'), [](size_t, size_t) {});
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << pattern;
  }
}

// The one match takes a step for each character.
TEST(Regex, ALongWordIsMatched) {
  for (const char* pattern : {"(?:a|b)+", "a+(?!c)", "[ab]*a", "(?:aa?)+a"}) {
    size_t longest = 0;
    const absl::Status status = MustCompile(pattern).ForEachMatch(
        Word(kMegabyte, 'c'), [&](size_t begin, size_t end) { longest = std::max(longest, end - begin); });
    EXPECT_TRUE(status.ok()) << pattern << " " << status;
    EXPECT_GT(longest, 1 << 19) << pattern;
  }
}

}  // namespace
}  // namespace outrider
