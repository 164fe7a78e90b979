#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "client/cli/render.h"

namespace outrider {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr OutputStyle kPipe = {};
constexpr OutputStyle kTerminal = {.terminal = true, .colour = false};
constexpr OutputStyle kColour = {.terminal = true, .colour = true};

struct Token {
  std::string_view text;
  v1::TokenKind kind;
};
constexpr auto kAccepted = v1::TOKEN_KIND_ACCEPTED;
constexpr auto kCorrected = v1::TOKEN_KIND_CORRECTED;
constexpr auto kBonus = v1::TOKEN_KIND_BONUS;
constexpr auto kPlain = v1::TOKEN_KIND_PLAIN;

v1::GenerateResponse Chunk(const std::vector<Token>& tokens) {
  v1::GenerateResponse chunk;
  for (const Token& token : tokens) {
    v1::GeneratedToken* added = chunk.add_tokens();
    added->set_id(static_cast<uint32_t>(token.text.size()));
    added->set_text(std::string(token.text));
    added->set_kind(token.kind);
    chunk.mutable_text()->append(token.text);
  }
  return chunk;
}

v1::GenerateResponse Round(const std::vector<std::string>& drafted, uint32_t accepted, Token own) {
  std::vector<Token> tokens;
  for (uint32_t i = 0; i < accepted; ++i) tokens.push_back({drafted[i], kAccepted});
  tokens.push_back(own);
  v1::GenerateResponse chunk = Chunk(tokens);
  v1::RoundTrace* trace = chunk.mutable_trace();
  trace->set_round(7);
  for (const std::string& text : drafted) trace->add_drafted_text(text);
  trace->set_accepted(accepted);
  trace->set_token_text(std::string(own.text));
  trace->set_kind(own.kind);
  return chunk;
}

TEST(Renderer, WritesTheTextAndNothingElseIntoAPipe) {
  const auto chunk = Chunk({{" was", kAccepted}, {"\x1b[2J", kCorrected}, {" it\n", kBonus}});
  EXPECT_EQ(Renderer(kPipe).Chunk(chunk), chunk.text());
  EXPECT_EQ(Renderer(kPipe).Legend(), "");
}

TEST(Renderer, ColoursEveryKindDifferentlyOnATerminal) {
  const Renderer renderer(kColour);
  const std::string accepted = renderer.Chunk(Chunk({{"x", kAccepted}}));
  const std::string corrected = renderer.Chunk(Chunk({{"x", kCorrected}}));
  const std::string bonus = renderer.Chunk(Chunk({{"x", kBonus}}));
  EXPECT_EQ(renderer.Chunk(Chunk({{"x", kPlain}})), "x");
  EXPECT_NE(accepted, corrected);
  EXPECT_NE(corrected, bonus);
  EXPECT_NE(accepted, bonus);
  for (const std::string& painted : {accepted, corrected, bonus}) EXPECT_THAT(painted, HasSubstr("x\033[0m"));
}

TEST(Renderer, UsesNoEscapesOnATerminalWithoutColour) {
  EXPECT_EQ(Renderer(kTerminal).Chunk(Chunk({{" a", kAccepted}, {" b", kCorrected}})), " a b");
  EXPECT_THAT(Renderer(kTerminal).RoundLegend(), Not(HasSubstr("\033")));
}

TEST(Renderer, LetsNoTextSteerTheTerminal) {
  EXPECT_EQ(Renderer(kTerminal).Chunk(Chunk({{"a\x1b[2Jb\r\x7f", kPlain}})), "a\uFFFD[2Jb\uFFFD\uFFFD");
  EXPECT_EQ(WithoutControls("\u009b2J \u00a0\u00e9\n\t"), "\uFFFD2J \u00a0\u00e9\n\t");
}

TEST(Renderer, ShowsARoundWithARejectionAsInTheFigure) {
  EXPECT_EQ(Renderer(kPipe).Round(Round({" up", " in", " a"}, 1, {" on", kCorrected})),
            "   7   up[- in a-]{+ on+}\n");
}

TEST(Renderer, ShowsAFullyAcceptedRoundWithItsBonus) {
  EXPECT_EQ(Renderer(kPipe).Round(Round({" up", " in"}, 2, {" the", kBonus})), "   7   up in{* the*}\n");
}

TEST(Renderer, ShowsAPlainRoundPlainly) {
  EXPECT_EQ(Renderer(kPipe).Round(Round({}, 0, {" the", kPlain})), "   7   the\n");
}

TEST(Renderer, StrikesRejectedTokensThroughInColour) {
  const std::string line = Renderer(kColour).Round(Round({" up", " in"}, 1, {" on", kCorrected}));
  EXPECT_THAT(line, HasSubstr("\033[9;31m in\033[0m"));
  EXPECT_THAT(line, Not(HasSubstr("[-")));
}

TEST(Renderer, KeepsARoundOnOneLine) {
  EXPECT_EQ(Renderer(kPipe).Round(Round({"\n"}, 1, {"\r\n", kBonus})), "   7  ↵{*␍↵*}\n");
}

TEST(Renderer, ShowsTokensPastTheEndOfTheAnswerAsNotCommitted) {
  v1::GenerateResponse chunk = Round({" a", "<eos>", " b"}, 3, {" c", kBonus});
  chunk.mutable_tokens()->DeleteSubrange(2, 2);  // the end came with the second token
  EXPECT_EQ(Renderer(kPipe).Round(chunk), "   7   a<eos>[- b-]\n");
}

v1::Finish Finish() {
  v1::Finish finish;
  finish.set_reason(v1::FINISH_REASON_LENGTH);
  finish.mutable_usage()->set_prompt_tokens(3);
  finish.mutable_usage()->set_completion_tokens(12);
  finish.mutable_usage()->set_first_token_seconds(0.5);
  finish.mutable_usage()->set_decode_seconds(1.5);
  v1::SpeculationStats* stats = finish.mutable_speculation();
  stats->set_rounds(4);
  stats->set_drafted(16);
  stats->set_accepted(8);
  stats->set_acceptance_rate(0.5);
  stats->set_emitted_accepted(8);
  stats->set_exact(true);
  stats->add_drafted_per_position(4);
  stats->add_accepted_per_position(3);
  return finish;
}

TEST(Summary, GivesRatesOfTheWholeAnswer) {
  EXPECT_EQ(
      Summary(Finish()),
      "12 tokens, the first after 0.50 s, then 7.3 tokens/s; 4 target calls, 3.00 tokens a call; acceptance "
      "50.0 % (8 of 16 drafted)");
}

TEST(Summary, HasNoRateWhereNothingFollowsTheFirstTokens) {
  v1::Finish finish = Finish();
  finish.mutable_usage()->set_decode_seconds(0);
  EXPECT_THAT(Summary(finish), StartsWith("12 tokens in 0.50 s; "));
  finish.mutable_usage()->set_completion_tokens(1);
  EXPECT_THAT(Summary(finish), StartsWith("1 token in 0.50 s; "));
}

TEST(Summary, SaysWhenNothingWasDrafted) {
  v1::Finish finish = Finish();
  finish.clear_speculation();
  EXPECT_THAT(Summary(finish), HasSubstr("nothing was drafted"));
}

TEST(Comparison, SaysWhetherTheTextIsThatOfPlainDecoding) {
  const Completion drafted = {"a text", {}, Finish()};
  Completion plain = drafted;
  plain.finish.mutable_usage()->set_decode_seconds(3.75);
  // The prompt is in the prefix cache by then.
  plain.finish.mutable_usage()->set_first_token_seconds(0.1);
  EXPECT_EQ(Comparison(drafted, plain),
            "plain decoding: 12 tokens, the first after 0.10 s, then 2.9 tokens/s; 2.50 times as fast with "
            "speculation\n"
            "same text as plain decoding: yes");
  plain.text = "another";
  EXPECT_THAT(Comparison(drafted, plain), HasSubstr("same text as plain decoding: no"));
}

TEST(Json, HasTheContractsFields) {
  const auto chunk = Chunk({{" a", kAccepted}, {" was", kCorrected}});
  const Completion completion = {chunk.text(), {chunk.tokens().begin(), chunk.tokens().end()}, Finish()};
  const auto json = nlohmann::json::parse(ToJson({completion}));
  EXPECT_EQ(json["text"], " a was");
  EXPECT_EQ(json["tokens"], nlohmann::json({2, 4}));
  EXPECT_EQ(json["kinds"], nlohmann::json({"accepted", "corrected"}));
  EXPECT_EQ(json["finish_reason"], "length");
  EXPECT_EQ(json["usage"], nlohmann::json({{"prompt_tokens", 3},
                                           {"completion_tokens", 12},
                                           {"cached_prompt_tokens", 0},
                                           {"first_token_seconds", 0.5},
                                           {"decode_seconds", 1.5}}));
  EXPECT_EQ(json["speculation"]["emitted"],
            nlohmann::json({{"accepted", 8}, {"corrected", 0}, {"bonus", 0}, {"plain", 0}}));
  EXPECT_EQ(json["speculation"]["exact"], true);
  EXPECT_EQ(json["speculation"]["accepted_per_position"], nlohmann::json({3}));
}

TEST(Json, HasAnObjectForEachOfSeveralSamples) {
  const auto json = nlohmann::json::parse(ToJson({{"one", {}, Finish()}, {"two", {}, Finish()}}));
  ASSERT_EQ(json["samples"].size(), 2u);
  EXPECT_EQ(json["samples"][1]["text"], "two");
}

TEST(Json, HasNullForAServerThatIsNotThere) {
  v1::DescribeResponse description;
  description.mutable_target()->set_model("big");
  const auto json = nlohmann::json::parse(ToJson(description));
  EXPECT_EQ(json["target"]["model"], "big");
  EXPECT_TRUE(json["draft"].is_null());
}

}  // namespace
}  // namespace outrider
