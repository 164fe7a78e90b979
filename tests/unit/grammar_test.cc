// Grammars, compared with lists of the words of their languages.
#include "common/grammar/grammar.h"

#include <gmock/gmock.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

namespace outrider {
namespace {

using ::testing::HasSubstr;

const std::vector<std::string>& Tokens() {
  static const auto* const tokens =
      new std::vector<std::string>{"a",     "b", "c", "d",  "ab",   "ca", "bd", "{", "}", "\"",
                                   "\"x\"", ":", "1", "12", "true", ",",  " ",  "",  ""};
  return *tokens;
}
constexpr TokenId kSpecial = 17, kEnd = 18;

const GrammarVocabulary& Vocabulary() {
  static const auto* const vocabulary = new GrammarVocabulary(Tokens(), {kEnd});
  return *vocabulary;
}

std::shared_ptr<const Grammar> Compiled(GrammarSyntax syntax, const std::string& text) {
  auto grammar = Grammar::Compile({syntax, text}, Vocabulary());
  EXPECT_TRUE(grammar.ok()) << grammar.status();
  return *std::move(grammar);
}

std::set<TokenId> Allowed(TokenMask& mask, const std::vector<TokenId>& output) {
  std::vector<float> row(Tokens().size(), 0);
  mask.Apply(output, row);
  std::set<TokenId> allowed;
  for (size_t i = 0; i < row.size(); ++i) {
    if (std::isfinite(row[i])) allowed.insert(static_cast<TokenId>(i));
  }
  return allowed;
}

// The tokens that may follow a text, given all words of the language up to a length beyond the text's.
std::set<TokenId> Expected(const std::set<std::string>& words, const std::string& text) {
  std::set<TokenId> expected;
  for (size_t token = 0; token < Tokens().size(); ++token) {
    const std::string& more = Tokens()[token];
    if (more.empty()) continue;
    const auto word = words.lower_bound(text + more);
    if (word != words.end() && word->starts_with(text + more)) expected.insert(static_cast<TokenId>(token));
  }
  if (words.contains(text)) expected.insert(kEnd);
  return expected;
}

// Visits the texts of a language depth first, so that a text is often not the last one with a token more.
void Walk(TokenMask& mask, const std::set<std::string>& words, size_t depth, std::vector<TokenId> output,
          const std::string& text, int& visited) {
  const std::set<TokenId> allowed = Allowed(mask, output);
  ASSERT_EQ(allowed, Expected(words, text)) << text;
  ++visited;
  if (output.size() == depth) return;
  for (const TokenId token : allowed) {
    if (token == kEnd) continue;
    output.push_back(token);
    Walk(mask, words, depth, output, text + Tokens()[static_cast<size_t>(token)], visited);
    output.pop_back();
  }
}

TEST(Grammar, AllowsWhatItsLanguageHas) {
  // (ab|ca)*d with up to eight pairs.
  std::set<std::string> words = {"d"};
  for (int pairs = 0; pairs < 8; ++pairs) {
    const std::set<std::string> shorter = words;
    for (const std::string& word : shorter) words.insert({"ab" + word, "ca" + word});
  }
  int visited = 0;
  Walk(*Compiled(GrammarSyntax::kRegex, "(ab|ca)*d")->NewMask(), words, 6, {}, "", visited);
  EXPECT_GT(visited, 200);
  visited = 0;
  Walk(*Compiled(GrammarSyntax::kEbnf, R"(root ::= ("ab" | "ca") root | "d")")->NewMask(), words, 6, {}, "",
       visited);
  EXPECT_GT(visited, 200);
}

TEST(Grammar, OfASchemaAllowsItsObjects) {
  const auto grammar =
      Compiled(GrammarSyntax::kJsonSchema, R"({"type": "object", "properties": {"x": {"enum": [1, 12, true]}},
                                                               "required": ["x"], "additionalProperties": false})");
  const auto mask = grammar->NewMask();
  // {"x": then
  EXPECT_THAT(Allowed(*mask, {7, 10, 11}), (std::set<TokenId>{12, 13, 14, 16}));
  EXPECT_THAT(Allowed(*mask, {7, 10, 11, 12}), (std::set<TokenId>{8, 16}));
  EXPECT_THAT(Allowed(*mask, {7, 10, 11, 12, 8}), (std::set<TokenId>{kEnd}));
  EXPECT_THAT(Allowed(*mask, {}), (std::set<TokenId>{7}));
  EXPECT_GT(grammar->bytes(), 0u);
}

TEST(Grammar, WhatFollowsNoTextIsNotRemoved) {
  const auto mask = Compiled(GrammarSyntax::kRegex, "ab")->NewMask();
  const size_t all = Tokens().size();
  EXPECT_THAT(Allowed(*mask, {3}), testing::SizeIs(all)) << "no text that may be";
  EXPECT_THAT(Allowed(*mask, {3, 0}), testing::SizeIs(all));
  EXPECT_THAT(Allowed(*mask, {4, kEnd}), testing::SizeIs(all)) << "one that has ended";
  EXPECT_THAT(Allowed(*mask, {4, kEnd, 4}), testing::SizeIs(all));
  EXPECT_THAT(Allowed(*mask, {0}), (std::set<TokenId>{1})) << "it goes on from there";
}

TEST(Grammar, OfWhatIsMalformedIsRefusedInWords) {
  for (const auto& [syntax, text] :
       {std::pair(GrammarSyntax::kJsonSchema, "{"), std::pair(GrammarSyntax::kJsonSchema, R"({"type": "x"})"),
        std::pair(GrammarSyntax::kRegex, "(a"), std::pair(GrammarSyntax::kEbnf, "root ::= other"),
        std::pair(GrammarSyntax::kStructuralTag, "[]")}) {
    const auto grammar = Grammar::Compile({syntax, text}, Vocabulary());
    ASSERT_EQ(grammar.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(grammar.status().message(), HasSubstr("grammar")) << text;
  }
  EXPECT_EQ(Grammar::Compile({GrammarSyntax::kRegex, std::string(kMaxGrammarText + 1, 'a')}, Vocabulary())
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(Grammar, RefusesEscapesThatXGrammarMisreads) {
  EXPECT_THAT(Grammar::Compile({GrammarSyntax::kRegex, R"([^\u00e9a]+)"}, Vocabulary()).status().message(),
              HasSubstr("the character itself"));
  EXPECT_TRUE(Grammar::Compile({GrammarSyntax::kRegex, R"(\\u[^éa]+)"}, Vocabulary()).ok())
      << "a backslash and a u";
}

TEST(Grammar, SaysWhatMustComeNext) {
  const auto grammar = Compiled(GrammarSyntax::kRegex, "abca?");
  const auto mask = grammar->NewGrammarMask();
  EXPECT_EQ(mask->Forced({}), "abc");
  EXPECT_EQ(mask->OnlyToken({}), std::nullopt) << "one of two";
  EXPECT_EQ(mask->Forced(std::vector<TokenId>{0, 1}), "c");
  EXPECT_EQ(mask->Forced(std::vector<TokenId>{0, 1, 2}), "") << "it may end";
  EXPECT_EQ(mask->OnlyToken(std::vector<TokenId>{0, 1, 2, 0}), kEnd);
  EXPECT_EQ(mask->Forced(std::vector<TokenId>{1}), "") << "no beginning of a text";
  const auto copy = mask->Copy();
  EXPECT_EQ(Allowed(*copy, {0, 1, 2}), (std::set<TokenId>{0, kEnd}));
}

}  // namespace
}  // namespace outrider
