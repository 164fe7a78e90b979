#include "coordinator/decode/drafters/grammar_drafter.h"

#include <gmock/gmock.h>

#include "common/grammar/vocabulary.h"
#include "drafter_testing.h"

namespace outrider {
namespace {

using ::testing::IsEmpty;
using ::testing::StartsWith;

const TokenId kEnd = *TestTokenizer().TokenToId("<|endoftext|>");

Tokens Encoded(const std::string& text) {
  return *TestTokenizer().Encode(text, /*add_special_tokens=*/false);
}

std::string Text(const Proposal& proposal) {
  std::string text;
  for (const TokenId token : TokensOf(proposal))
    text += token == kEnd ? "." : TestTokenizer().TokenBytes(token);
  return text;
}

// Drafts for a generation that has emitted `output` under a grammar.
class GrammarDrafterTest : public ::testing::Test {
 protected:
  Proposal Draft(GrammarText text, const std::string& output, int k = 16, v1::Rule rule = v1::RULE_TOKEN) {
    Request request;
    request.params.set_rule(rule);
    request.prompt = {1, 2};
    request.max_tokens = 100;
    request.end_ids = {kEnd};
    request.grammar = Grammar::Compile(text, BytesVocabulary()).value();
    Generation generation(std::move(request), &TestTokenizer(), Clock::now());
    for (const TokenId token : Encoded(output)) Reject(generation, {}, token);
    return GrammarDrafter(&generation, &TestTokenizer()).Draft(k);
  }
};

constexpr char kPerson[] =
    R"({"type":"object","properties":{"name":{"enum":["Ada","Bob"]},"age":{"type":"integer"}},"required":["name","age"]})";

TEST_F(GrammarDrafterTest, ProposesWhatMustComeNext) {
  EXPECT_EQ(Text(Draft({GrammarSyntax::kRegex, "The little (boy|girl)"}, "")), "The little ");
  EXPECT_EQ(Text(Draft({GrammarSyntax::kRegex, "The little (boy|girl)"}, "The little b")), "oy.")
      << "and the end";
  EXPECT_THAT(Draft({GrammarSyntax::kRegex, "(boy|girl)"}, ""), IsEmpty());
  EXPECT_THAT(Text(Draft({GrammarSyntax::kJsonSchema, kPerson}, "{\"n")), StartsWith("ame\""));
}

TEST_F(GrammarDrafterTest, ProposesNoMoreThanIsWanted) {
  const GrammarText text{GrammarSyntax::kRegex, "The little boy went out"};
  const Tokens all = Encoded("The little boy went out");
  ASSERT_GE(all.size(), 3u);
  EXPECT_EQ(TokensOf(Draft(text, "", 2)), Tokens(all.begin(), all.begin() + 2));
  EXPECT_THAT(Draft(text, "", 0), IsEmpty());
}

TEST_F(GrammarDrafterTest, ItsProposalsAreTaken) {
  const GrammarText text{GrammarSyntax::kRegex, "boy"};
  for (const ProposalNode& node : Draft(text, "")) EXPECT_EQ(node.q.form, Distribution::Form::kPointMass);
  for (const ProposalNode& node : Draft(text, "", 16, v1::RULE_COUPLED)) {
    EXPECT_EQ(node.q.form, Distribution::Form::kAbsent);
  }
}

// Half a character is no text, so a tokenizer cannot split it.
TEST_F(GrammarDrafterTest, LeavesHalfACharacterToOthers) {
  EXPECT_THAT(Draft({GrammarSyntax::kEbnf, "root ::= \"é\" | \"è\""}, ""), IsEmpty());
}

}  // namespace
}  // namespace outrider
