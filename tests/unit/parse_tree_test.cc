#include "coordinator/api/parse_request.h"

#include <gmock/gmock.h>

#include <functional>

#include "common/spec/status.h"

namespace outrider {
namespace {

using ::testing::HasSubstr;

// A request for a draft model's tokens under the token rule, and a target that takes trees of 20 nodes.
class ParseTreeTest : public ::testing::Test {
 protected:
  ParseTreeTest() { Reset(); }

  void Reset() {
    speculation_ = {};
    request_ = {};
    is_greedy_ = false;
    target_.set_max_tree_nodes(20);
    target_.set_max_draft_tokens(8);
    target_.set_tree_row_invariant(true);
    request_.params.set_rule(v1::RULE_TOKEN);
    request_.draft_tokens = 5;
    request_.adaptive = true;
    request_.schedule = v1::SCHEDULE_AUTO;
  }

  absl::Status Parse(const std::string& tree) {
    speculation_.set_tree(tree);
    return ParseTree(
        speculation_,
        {.target = target_, .default_tree = default_, .is_greedy = is_greedy_, .repeatable = repeatable_},
        request_);
  }
  // Expects an error that names the field, the problem and the range.
  void ExpectRefused(const std::string& tree, const std::string& range,
                     const std::string& field = "speculation.tree") {
    const absl::Status status = Parse(tree);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << tree;
    EXPECT_EQ(MetadataOf(status, "field"), field) << tree;
    EXPECT_THAT(MetadataOf(status, "range"), HasSubstr(range)) << tree;
    EXPECT_THAT(std::string(status.message()), HasSubstr(field));
    EXPECT_FALSE(request_.tree.has_value()) << tree;
  }

  v1::SpeculationOptions speculation_;
  v1::ServerInfo target_;
  std::string default_ = "none";
  bool is_greedy_ = false, repeatable_ = true;
  Request request_;
};

TEST_F(ParseTreeTest, AShapeSaysHowDeepTheTreeIsAndThatRoundsAreInLockstep) {
  ASSERT_TRUE(Parse("3x2x1").ok());
  EXPECT_EQ(*request_.tree, TreeShape(Branching{{3, 2, 1}}));
  EXPECT_EQ(request_.draft_tokens, 3);
  EXPECT_FALSE(request_.adaptive);
  EXPECT_EQ(request_.schedule, v1::SCHEDULE_LOCKSTEP);
}

TEST_F(ParseTreeTest, AShapeThatDoesNotSayIsFourDeepOrAsDeepAsTheRequestSays) {
  ASSERT_TRUE(Parse("chains:3").ok());
  EXPECT_EQ(*request_.tree, TreeShape(Chains{3}));
  EXPECT_EQ(request_.draft_tokens, 4) << "the largest K of a policy is no wish";
  request_.adaptive = false;
  request_.draft_tokens = 6;
  ASSERT_TRUE(Parse("budget:12").ok());
  EXPECT_EQ(*request_.tree, TreeShape(NodeBudget{12}));
  EXPECT_EQ(request_.draft_tokens, 6) << "K of the coordinator's flag";
  speculation_.set_draft_tokens(2);
  request_.draft_tokens = 2;
  ASSERT_TRUE(Parse("2x2x2x2").ok()) << "six nodes";
  EXPECT_EQ(request_.draft_tokens, 2);
}

TEST_F(ParseTreeTest, NoTreeIsDeeperThanTheTargetTakes) {
  target_.set_max_draft_tokens(2);
  ASSERT_TRUE(Parse("2x2x2x2").ok());
  EXPECT_EQ(request_.draft_tokens, 2);
}

TEST_F(ParseTreeTest, WhatIsNoShapeIsRefused) {
  for (const char* tree :
       {"x",         "2x",       "x2",      "2x0",      "0",    "-1",     "2x-1",        " 2",
        "2 ",        "2X2",      "2,2",     "2.5",      "1e3",  "chains", "chains:",     "chains:0",
        "chains:-1", "chains:x", "budget:", "budget:0", "Auto", "beam:2", "99999999999", "\xff"}) {
    ExpectRefused(tree, "none, auto, or a shape such as 2x2x1, chains:3 or budget:12");
    EXPECT_NE(ProblemOfTree(tree), "") << tree;
  }
  std::string deep = "1";
  for (int i = 0; i < 31; ++i) deep += "x1";
  ExpectRefused(deep, "a shape such as");
}

TEST_F(ParseTreeTest, AShapeWithMoreNodesThanTheTargetTakesIsRefused) {
  for (const char* tree :
       {"21", "4x4x1", "2x2x2x2", "chains:6", "budget:21", "65536x65536", "chains:2147483647"}) {
    ExpectRefused(tree, "at most 20 nodes");
    EXPECT_EQ(ProblemOfTree(tree), "") << "that is for the target to say";
  }
  for (const char* tree : {"20", "4x4", "2x2x2", "chains:5", "budget:20"}) {
    EXPECT_TRUE(Parse(tree).ok()) << tree;
    EXPECT_TRUE(request_.tree.has_value()) << tree;
  }
}

TEST_F(ParseTreeTest, AShapeThatTheRestOfTheRequestForbidsIsRefusedAndADefaultIsNot) {
  const auto forbid = [this](const std::function<void()>& how, const std::string& what) {
    Reset();
    how();
    ExpectRefused("2x2", "none with " + what);
    speculation_.clear_tree();
    default_ = "2x2";
    EXPECT_TRUE(Parse("").ok()) << what;
    EXPECT_FALSE(request_.tree.has_value()) << what;
    EXPECT_EQ(request_.draft_tokens, 5) << "the chain is what it would be";
    EXPECT_TRUE(Parse("auto").ok()) << what;
    EXPECT_FALSE(request_.chooses_tree) << what;
    EXPECT_EQ(request_.schedule, v1::SCHEDULE_AUTO);
  };
  forbid([&] { request_.drafter = v1::DRAFTER_KIND_NGRAM; }, "drafter ngram");
  forbid([&] { request_.params.set_rule(v1::RULE_BLOCK); }, "rule block");
  forbid([&] { request_.params.set_lenience(0.5); }, "lenience below 1");
  forbid([&] { target_.set_max_tree_nodes(0); }, "a target that takes none");
  forbid([&] { target_.set_tree_row_invariant(false), is_greedy_ = true; }, "a target that rounds trees");
  forbid([&] { target_.set_tree_row_invariant(false), request_.params.set_rule(v1::RULE_COUPLED); },
         "a target that rounds trees");
}

TEST_F(ParseTreeTest, ATargetThatRoundsTreesJudgesThemWhereNoBitsCount) {
  target_.set_tree_row_invariant(false);
  EXPECT_TRUE(Parse("2x2").ok());
  EXPECT_TRUE(request_.tree.has_value());
  is_greedy_ = true;
  target_.set_inexact_trees(true);
  EXPECT_TRUE(Parse("2x2").ok());
}

TEST_F(ParseTreeTest, NothingDraftedIsNoTree) {
  request_.draft_tokens = 0;
  for (const char* tree : {"2x2", "auto", "9x9x9"}) {
    EXPECT_TRUE(Parse(tree).ok()) << tree;
    EXPECT_FALSE(request_.tree.has_value() || request_.chooses_tree) << tree;
  }
  ExpectRefused("2x", "a shape such as");
}

TEST_F(ParseTreeTest, TheRequestGoesBeforeTheDefault) {
  default_ = "2x2";
  ASSERT_TRUE(Parse("none").ok());
  EXPECT_FALSE(request_.tree.has_value());
  ASSERT_TRUE(Parse("chains:2").ok());
  EXPECT_EQ(*request_.tree, TreeShape(Chains{2}));
  request_.tree.reset();
  ASSERT_TRUE(Parse("").ok());
  EXPECT_EQ(*request_.tree, TreeShape(Branching{{2, 2}}));
}

TEST_F(ParseTreeTest, ADefaultThatIsTooLargeForTheTargetGivesChains) {
  default_ = "9x9";
  ASSERT_TRUE(Parse("").ok());
  EXPECT_FALSE(request_.tree.has_value());
  EXPECT_EQ(request_.draft_tokens, 5) << "the chain is what it would be";
  EXPECT_TRUE(request_.adaptive);
}

TEST_F(ParseTreeTest, AutoLeavesTheChoiceToThePolicyWhereASeedDoesNotForbidIt) {
  ASSERT_TRUE(Parse("auto").ok());
  EXPECT_TRUE(request_.chooses_tree);
  EXPECT_EQ(request_.max_tree_nodes, 20);
  EXPECT_EQ(request_.schedule, v1::SCHEDULE_AUTO) << "chains may run ahead";
  EXPECT_TRUE(request_.adaptive) << "K stays the policy's too";
  repeatable_ = false;
  ASSERT_TRUE(Parse("auto").ok());
  EXPECT_FALSE(request_.chooses_tree);
}

TEST_F(ParseTreeTest, ARandomOrderIsForIndependentDrawsAndTokensThatWereTaken) {
  speculation_.set_sibling_order(v1::SIBLING_ORDER_RANDOM);
  EXPECT_TRUE(Parse("chains:3").ok());
  EXPECT_EQ(request_.params.sibling_order(), v1::SIBLING_ORDER_RANDOM);
  for (const char* tree : {"2x2", "budget:4", "auto"}) {
    const absl::Status status = Parse(tree);
    EXPECT_EQ(MetadataOf(status, "field"), "speculation.sibling_order") << tree;
    EXPECT_THAT(MetadataOf(status, "range"), HasSubstr("given where siblings are drawn without replacement"));
  }
  is_greedy_ = true;
  EXPECT_TRUE(Parse("2x2").ok()) << "the draft takes its first choices";
  request_.params.set_draft_temperature(0.5);
  EXPECT_FALSE(Parse("2x2").ok()) << "it draws though the target does not";
  is_greedy_ = false;
  request_.params.set_draft_temperature(0);
  EXPECT_TRUE(Parse("2x2").ok());
  request_.params.set_rule(v1::RULE_COUPLED);
  EXPECT_EQ(MetadataOf(Parse("chains:3"), "range"), "given with rule coupled");
  speculation_.set_sibling_order(static_cast<v1::SiblingOrder>(77));
  EXPECT_EQ(MetadataOf(Parse("chains:3"), "field"), "speculation.sibling_order");
}

}  // namespace
}  // namespace outrider
