#include "common/grammar/grammar_cache.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace outrider {
namespace {

GrammarVocabulary Letters() { return GrammarVocabulary({"a", "b", "c", ""}, {3}); }

GrammarCache::Result Get(GrammarCache& cache, const std::string& regex) {
  std::promise<GrammarCache::Result> result;
  cache.Get({GrammarSyntax::kRegex, regex}, [&](const GrammarCache::Result& r) { result.set_value(r); });
  return result.get_future().get();
}

TEST(GrammarCache, CompilesOnce) {
  GrammarCache cache(Letters);
  const auto first = Get(cache, "a*b");
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(Get(cache, "a*b")->get(), first->get());
  EXPECT_NE(Get(cache, "a*c")->get(), first->get());
  bool at_once = false;
  cache.Get({GrammarSyntax::kRegex, "a*b"}, [&](const auto&) { at_once = true; });
  EXPECT_TRUE(at_once);
}

TEST(GrammarCache, KeepsErrors) {
  GrammarCache cache(Letters);
  EXPECT_EQ(Get(cache, "(a").status().code(), absl::StatusCode::kInvalidArgument);
  bool at_once = false;
  cache.Get({GrammarSyntax::kRegex, "(a"}, [&](const auto& result) { at_once = !result.ok(); });
  EXPECT_TRUE(at_once);
}

// A different word of the same length for each number, so that all grammars have one size.
std::string Word(int number) {
  std::string word;
  for (int i = 0; i < 6; ++i, number /= 3) word += "abc"[number % 3];
  return word;
}

TEST(GrammarCache, ForgetsWhatWasUsedLongestAgo) {
  const size_t one = (*Grammar::Compile({GrammarSyntax::kRegex, Word(0)}, Letters()))->bytes() + 6;
  GrammarCache cache(Letters, {.max_bytes = 4 * one});
  const auto first = Get(cache, Word(0));
  const auto second = Get(cache, Word(1));
  for (int i = 2; i < 40; ++i) {
    ASSERT_TRUE(Get(cache, Word(i)).ok());
    ASSERT_EQ(Get(cache, Word(0))->get(), first->get()) << "it was used in between";
  }
  EXPECT_NE(Get(cache, Word(1))->get(), second->get());
}

TEST(GrammarCache, EveryoneIsAnsweredThoughItEnds) {
  std::atomic<int> answered = 0, refused = 0;
  {
    GrammarCache cache(Letters, {.max_waiting = 4});
    for (int i = 0; i < 100; ++i) {
      cache.Get({GrammarSyntax::kRegex, absl::StrCat("(a|b){", i % 50 + 1, "}c")}, [&](const auto& result) {
        ++answered;
        refused += absl::IsResourceExhausted(result.status()) ? 1 : 0;
      });
    }
    EXPECT_GT(refused, 0);
  }
  EXPECT_EQ(answered, 100);
}

}  // namespace
}  // namespace outrider
