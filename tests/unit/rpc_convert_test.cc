// Proposals and verdicts go over the wire and come back as they were.
#include "common/rpc/convert.h"

#include <gmock/gmock.h>

#include "common/rpc/error.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using Nodes = google::protobuf::RepeatedPtrField<v1::DraftNode>;
using Form = Distribution::Form;

constexpr int kVocab = 4;

Distribution Q(Form form, std::vector<TokenId> ids, std::vector<float> weights) {
  Distribution q;
  q.form = form;
  q.ids = std::move(ids);
  q.weights = std::move(weights);
  return q;
}

Nodes Serialized(const Proposal& proposal) {
  Nodes nodes;
  SerializeProposal(proposal, &nodes);
  return nodes;
}

TEST(Convert, AProposalWithEachFormOfQComesBackAsItWas) {
  Proposal proposal;
  AppendToChain(3, Q(Form::kSparse, {1, 3}, {2, 6}), proposal);
  AppendToChain(2, Q(Form::kDense, {}, {0.5f, 0, 1.5f, 0}), proposal);
  AppendToChain(1, Q(Form::kPointMass, {1}, {}), proposal);
  const Proposal parsed = ParseProposal(Serialized(proposal), Rule::kToken, kVocab).value();
  ASSERT_EQ(parsed.size(), 3u);
  for (size_t i = 0; i < parsed.size(); ++i) {
    EXPECT_EQ(parsed[i].token, proposal[i].token);
    EXPECT_EQ(parsed[i].parent, proposal[i].parent);
    EXPECT_EQ(parsed[i].q.form, proposal[i].q.form);
    EXPECT_THAT(parsed[i].q.ids, ElementsAreArray(proposal[i].q.ids));
    EXPECT_THAT(parsed[i].q.weights, ElementsAreArray(proposal[i].q.weights));
  }
  EXPECT_EQ(parsed[0].q(3), 0.75) << "it is prepared";
  EXPECT_EQ(parsed[1].q(2), 0.75);
}

TEST(Convert, OnlyTheCoupledRuleDoesWithoutDistributions) {
  Proposal proposal;
  AppendToChain(3, Q(Form::kAbsent, {}, {}), proposal);
  const Nodes nodes = Serialized(proposal);
  EXPECT_FALSE(nodes[0].has_q());
  EXPECT_TRUE(ParseProposal(nodes, Rule::kCoupled, kVocab).ok());
  EXPECT_EQ(ReasonOf(ParseProposal(nodes, Rule::kToken, kVocab).status()), "DRAFT_DISTRIBUTION_INVALID");
}

TEST(Convert, AVerdictComesBackWithItsCanaries) {
  Proposal proposal;
  for (TokenId token : {1, 2, 3}) AppendToChain(token, {}, proposal);
  Verdict verdict;
  verdict.path = {0, 1};
  verdict.token = 2;
  verdict.kind = Verdict::Kind::kCorrected;
  verdict.empty_residual = true;
  verdict.expected_accepted = 1.5;
  verdict.expected_variance = 0.25;
  verdict.judged = 3;
  verdict.surprisal = 4.5;
  verdict.entropy = 5.5;
  const Verdict parsed = ParseVerdict(SerializeVerdict(verdict), proposal, kVocab).value();
  EXPECT_THAT(parsed.path, ElementsAre(0, 1));
  EXPECT_EQ(parsed.token, 2);
  EXPECT_EQ(parsed.kind, Verdict::Kind::kCorrected);
  EXPECT_TRUE(parsed.empty_residual);
  EXPECT_EQ(parsed.expected_accepted, 1.5);
  EXPECT_EQ(parsed.expected_variance, 0.25);
  EXPECT_EQ(parsed.judged, 3) << "the rejected node was looked at too";
  EXPECT_EQ(parsed.surprisal, 4.5);
  EXPECT_EQ(parsed.entropy, 5.5);
}

TEST(Convert, EachKindOfVerdictIsTheTokensKind) {
  EXPECT_EQ(ToProto(Verdict::Kind::kPlain), v1::TOKEN_KIND_PLAIN);
  EXPECT_EQ(ToProto(Verdict::Kind::kCorrected), v1::TOKEN_KIND_CORRECTED);
  EXPECT_EQ(ToProto(Verdict::Kind::kBonus), v1::TOKEN_KIND_BONUS);
}

TEST(Convert, APathThatIsNoneOfTheProposalsIsRefused) {
  Proposal proposal;
  for (TokenId token : {1, 2}) AppendToChain(token, {}, proposal);
  for (const std::vector<uint32_t>& path : std::vector<std::vector<uint32_t>>{{1}, {0, 0}, {0, 1, 2}}) {
    v1::Verdict message = SerializeVerdict({});
    message.mutable_accepted()->Add(path.begin(), path.end());
    EXPECT_EQ(ReasonOf(ParseVerdict(message, proposal, kVocab).status()), "VERDICT_INVALID");
  }
}

TEST(Convert, AGrammarBecomesItsText) {
  v1::Grammar grammar;
  grammar.set_json_schema("{}");
  EXPECT_EQ(*ParseGrammar(grammar), (GrammarText{GrammarSyntax::kJsonSchema, "{}"}));
  grammar.set_regex("a");
  EXPECT_EQ(*ParseGrammar(grammar), (GrammarText{GrammarSyntax::kRegex, "a"}));
  grammar.set_ebnf("root ::= \"a\"");
  EXPECT_EQ(*ParseGrammar(grammar), (GrammarText{GrammarSyntax::kEbnf, "root ::= \"a\""}));
  grammar.set_structural_tag("{}");
  EXPECT_EQ(*ParseGrammar(grammar), (GrammarText{GrammarSyntax::kStructuralTag, "{}"}));
}

TEST(Convert, ChoicesAreAlternativesOfARule) {
  v1::Grammar grammar;
  for (const char* text : {"yes", "\"no\"", "back\\slash", "two\nlines", "é"})
    grammar.mutable_choices()->add_texts(text);
  EXPECT_EQ(ParseGrammar(grammar)->text,
            R"(root ::= "yes" | "\"no\"" | "back\\slash" | "two\u000alines" | "é")");
}

TEST(FromGrpc, SaysSomethingWhereGrpcDoesNot) {
  const absl::Status unknown = FromGrpc({grpc::StatusCode::UNIMPLEMENTED, ""});
  EXPECT_EQ(unknown.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(unknown.message(), testing::HasSubstr("another service"));
  EXPECT_THAT(FromGrpc({grpc::StatusCode::INTERNAL, ""}).message(), testing::HasSubstr("INTERNAL"));
}

}  // namespace
}  // namespace outrider
