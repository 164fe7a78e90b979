// Which drafter a request gets, where some drafters are the target itself.
#include "coordinator/api/parse_request.h"

#include <gmock/gmock.h>

#include "common/rpc/drafters.h"
#include "common/spec/status.h"
#include "tests/unit/test_tokenizer.h"

namespace outrider {
namespace {

using ::testing::HasSubstr;

TEST(OwnDrafters, HaveOneName) {
  for (const OwnDrafter& own : kOwnDrafters) {
    EXPECT_EQ(NameOf(own.drafter), NameOf(own.kind));
    EXPECT_EQ(NameOf(own.proposer), NameOf(own.kind));
  }
}

// A target that has EAGLE and LayerSkip, and a coordinator without a draft service.
class ParseDrafterTest : public ::testing::Test {
 protected:
  ParseDrafterTest() {
    target_.set_vocab_size(static_cast<uint32_t>(TestTokenizer().vocab_size()));
    target_.set_max_context(64);
    target_.set_max_draft_tokens(8);
    target_.set_max_tree_nodes(20);
    target_.set_tree_row_invariant(true);
    target_.set_kv_blocks(100);
    target_.set_block_size(16);
    Has(v1::PROPOSER_EAGLE, 8);
    Has(v1::PROPOSER_LAYER_SKIP, 4);
    proto_.set_text("The little boy");
    speculation().set_draft_tokens(5);
  }

  void Has(v1::Proposer proposer, uint32_t most, bool greedy = false) {
    v1::ProposerInfo* info = target_.add_proposers();
    info->set_proposer(proposer);
    info->set_max_draft_tokens(most);
    info->set_greedy(greedy);
  }
  v1::SpeculationOptions& speculation() { return *proto_.mutable_speculation(); }
  absl::StatusOr<Request> Parse() const { return ParseRequest(proto_, defaults_, TestTokenizer(), target_); }
  absl::StatusOr<Request> Parse(v1::DrafterKind drafter) {
    speculation().set_drafter(drafter);
    return Parse();
  }
  std::string ErrorOf(v1::DrafterKind drafter) {
    const absl::Status status = Parse(drafter).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(MetadataOf(status, "field"), "speculation.drafter");
    return std::string(status.message());
  }

  v1::GenerateRequest proto_;
  v1::ServerInfo target_;
  RequestDefaults defaults_{.has_draft_service = false, .max_samples = 8};
};

TEST_F(ParseDrafterTest, WhatTheTargetHasMayDraft) {
  const Request request = Parse(v1::DRAFTER_KIND_EAGLE).value();
  EXPECT_EQ(request.drafter, v1::DRAFTER_KIND_EAGLE);
  EXPECT_EQ(request.params.proposer(), v1::PROPOSER_EAGLE);
  EXPECT_EQ(request.draft_tokens, 5);
  EXPECT_EQ(request.schedule, v1::SCHEDULE_LOCKSTEP);
}

TEST_F(ParseDrafterTest, WhatTheTargetLacksIsRefusedWithAListOfWhatThereIs) {
  EXPECT_EQ(
      ErrorOf(v1::DRAFTER_KIND_MEDUSA),
      "speculation.drafter: medusa; proposers of the target: eagle, layer_skip; allowed: ngram, none, copy, "
      "auto, eagle, layer_skip, grammar");
  target_.clear_proposers();
  for (const auto kind : {v1::DRAFTER_KIND_MEDUSA, v1::DRAFTER_KIND_BLOCKWISE, v1::DRAFTER_KIND_EAGLE,
                          v1::DRAFTER_KIND_LAYER_SKIP, v1::DRAFTER_KIND_PASS}) {
    EXPECT_THAT(ErrorOf(kind), HasSubstr("; proposers of the target: none; allowed: ngram, none,"));
  }
  EXPECT_THAT(ErrorOf(static_cast<v1::DrafterKind>(99)), HasSubstr("unknown value 99"));
}

TEST_F(ParseDrafterTest, ADefaultIsComparedWithTheTargetToo) {
  defaults_.drafter = v1::DRAFTER_KIND_EAGLE;
  EXPECT_EQ(Parse()->params.proposer(), v1::PROPOSER_EAGLE);
  defaults_.drafter = v1::DRAFTER_KIND_PASS;
  EXPECT_THAT(std::string(Parse().status().message()), HasSubstr("pass; proposers of the target: eagle"));
  EXPECT_TRUE(CheckDrafter(v1::DRAFTER_KIND_PASS, defaults_, nullptr).ok()) << "no target was met yet";
  EXPECT_FALSE(CheckDrafter(v1::DRAFTER_KIND_MODEL, defaults_, nullptr).ok());
}

TEST_F(ParseDrafterTest, WithAGrammarAutoIsTheDefault) {
  proto_.mutable_sampling()->mutable_grammar()->set_regex("a*");
  EXPECT_EQ(Parse()->drafter, v1::DRAFTER_KIND_AUTO);
  defaults_.drafter = v1::DRAFTER_KIND_EAGLE;
  speculation().set_tree("2x1");
  EXPECT_EQ(Parse()->drafter, v1::DRAFTER_KIND_EAGLE) << "which makes trees";
  speculation().clear_tree();
  EXPECT_EQ(Parse(v1::DRAFTER_KIND_GRAMMAR)->drafter, v1::DRAFTER_KIND_GRAMMAR);
  EXPECT_EQ(Parse(v1::DRAFTER_KIND_COPY)->drafter, v1::DRAFTER_KIND_COPY);
}

TEST_F(ParseDrafterTest, WithAPredictionAutoIsTheDefault) {
  proto_.set_prediction("The little boy");
  EXPECT_EQ(Parse()->drafter, v1::DRAFTER_KIND_AUTO);
  defaults_.drafter = v1::DRAFTER_KIND_EAGLE;
  speculation().set_tree("2x1");
  EXPECT_EQ(Parse()->drafter, v1::DRAFTER_KIND_EAGLE) << "which makes trees";
}

TEST_F(ParseDrafterTest, AGrammarDraftsForRequestsThatHaveOne) {
  EXPECT_THAT(ErrorOf(v1::DRAFTER_KIND_GRAMMAR),
              HasSubstr("grammar; allowed: another, without sampling.grammar"));
  speculation().clear_drafter();
  defaults_.drafter = v1::DRAFTER_KIND_GRAMMAR;
  EXPECT_EQ(Parse()->drafter, v1::DRAFTER_KIND_NONE) << "a default is for all";
}

TEST_F(ParseDrafterTest, AGrammarIsCheckedAsFarAsItIsNotCompiled) {
  const auto field_of = [&] { return MetadataOf(Parse().status(), "field"); };
  v1::Grammar& grammar = *proto_.mutable_sampling()->mutable_grammar();
  EXPECT_EQ(field_of(), "sampling.grammar") << "no form";
  grammar.mutable_choices();
  EXPECT_EQ(field_of(), "sampling.grammar");
  grammar.mutable_choices()->add_texts("");
  EXPECT_EQ(field_of(), "sampling.grammar");
  grammar.set_regex(std::string(kMaxGrammarText + 1, 'a'));
  EXPECT_EQ(field_of(), "sampling.grammar");
  grammar.set_regex("a*");
  EXPECT_TRUE(Parse().ok());
  proto_.mutable_stop()->set_ignore_eos(true);
  EXPECT_EQ(field_of(), "stop.ignore_eos");
  proto_.mutable_stop()->clear_ignore_eos();
  proto_.mutable_beam()->set_width(2);
  EXPECT_EQ(field_of(), "sampling.grammar") << "a search has none";
}

TEST_F(ParseDrafterTest, AProposerIsNotAskedForMoreThanItGives) {
  EXPECT_EQ(Parse(v1::DRAFTER_KIND_LAYER_SKIP)->draft_tokens, 4);
  speculation().set_draft_tokens(3);
  EXPECT_EQ(Parse(v1::DRAFTER_KIND_LAYER_SKIP)->draft_tokens, 3);
  speculation().set_draft_tokens(9);
  EXPECT_EQ(MetadataOf(Parse(v1::DRAFTER_KIND_LAYER_SKIP).status(), "field"), "speculation.draft_tokens");
  speculation().clear_draft_tokens();
  defaults_.adaptive = true;
  EXPECT_EQ(Parse(v1::DRAFTER_KIND_LAYER_SKIP)->draft_tokens, 4) << "the policy's largest";
}

TEST_F(ParseDrafterTest, APlainRequestNeedsNoProposer) {
  speculation().set_draft_tokens(0);
  EXPECT_EQ(Parse(v1::DRAFTER_KIND_EAGLE)->params.proposer(), v1::PROPOSER_UNSPECIFIED);
  EXPECT_EQ(Parse(v1::DRAFTER_KIND_AUTO)->params.proposer(), v1::PROPOSER_UNSPECIFIED);
}

TEST_F(ParseDrafterTest, AutoTakesEagleWhereTheTargetHasIt) {
  for (const bool has_draft_service : {false, true}) {
    defaults_.has_draft_service = has_draft_service;
    EXPECT_EQ(Parse(v1::DRAFTER_KIND_AUTO)->params.proposer(), v1::PROPOSER_EAGLE);
  }
  target_.clear_proposers();
  Has(v1::PROPOSER_MEDUSA, 4);
  EXPECT_EQ(Parse(v1::DRAFTER_KIND_AUTO)->params.proposer(), v1::PROPOSER_UNSPECIFIED);
}

TEST_F(ParseDrafterTest, AutoRunsAheadOnlyWhereItAsksTheDraftService) {
  defaults_.has_draft_service = true;
  speculation().set_schedule(v1::SCHEDULE_RUN_AHEAD);
  EXPECT_EQ(Parse(v1::DRAFTER_KIND_AUTO)->schedule, v1::SCHEDULE_LOCKSTEP);
  target_.clear_proposers();
  EXPECT_EQ(Parse(v1::DRAFTER_KIND_AUTO)->schedule, v1::SCHEDULE_RUN_AHEAD);
  defaults_.has_draft_service = false;
  EXPECT_EQ(Parse(v1::DRAFTER_KIND_AUTO)->schedule, v1::SCHEDULE_LOCKSTEP);
}

TEST_F(ParseDrafterTest, OtherDraftersAskTheTargetForNothing) {
  for (const auto kind : {v1::DRAFTER_KIND_NGRAM, v1::DRAFTER_KIND_COPY, v1::DRAFTER_KIND_NONE}) {
    EXPECT_EQ(Parse(kind)->params.proposer(), v1::PROPOSER_UNSPECIFIED);
  }
}

TEST_F(ParseDrafterTest, TheTargetDrawsTreesNoDeeperThanItProposes) {
  speculation().clear_draft_tokens();
  speculation().set_tree("2x1x1x1x1");
  EXPECT_EQ(Parse(v1::DRAFTER_KIND_EAGLE)->draft_tokens, 5);
  const Request request = Parse(v1::DRAFTER_KIND_LAYER_SKIP).value();
  EXPECT_EQ(request.draft_tokens, 4);
  EXPECT_TRUE(request.tree.has_value());
}

TEST_F(ParseDrafterTest, TheBlockRuleTakesOnlyChainsOfTheTargetToo) {
  speculation().set_rule(v1::RULE_BLOCK);
  EXPECT_TRUE(Parse(v1::DRAFTER_KIND_EAGLE).ok());
  speculation().set_tree("2x1");
  EXPECT_EQ(MetadataOf(Parse(v1::DRAFTER_KIND_EAGLE).status(), "field"), "speculation.tree");
}

TEST_F(ParseDrafterTest, SiblingsThatAreTakenMayBeTriedInAnyOrder) {
  speculation().set_tree("2x1");
  speculation().set_sibling_order(v1::SIBLING_ORDER_RANDOM);
  EXPECT_EQ(MetadataOf(Parse(v1::DRAFTER_KIND_EAGLE).status(), "field"), "speculation.sibling_order");
  Has(v1::PROPOSER_BLOCKWISE, 4, /*greedy=*/true);
  EXPECT_TRUE(Parse(v1::DRAFTER_KIND_BLOCKWISE).ok());
}

TEST_F(ParseDrafterTest, ASearchHasAnotherDrafterThanTheTarget) {
  proto_.mutable_beam()->set_width(2);
  EXPECT_THAT(ErrorOf(v1::DRAFTER_KIND_EAGLE),
              HasSubstr("one that is not the target itself with beam search"));
  Request request = Parse(v1::DRAFTER_KIND_AUTO).value();
  EXPECT_EQ(request.params.proposer(), v1::PROPOSER_UNSPECIFIED);
  EXPECT_EQ(request.draft_tokens, 5);
  speculation().clear_drafter();
  defaults_.drafter = v1::DRAFTER_KIND_EAGLE;
  request = Parse().value();
  EXPECT_EQ(request.drafter, v1::DRAFTER_KIND_NONE);
  EXPECT_EQ(request.draft_tokens, 0);
  EXPECT_EQ(request.params.proposer(), v1::PROPOSER_UNSPECIFIED);
  defaults_.has_draft_service = true;
  EXPECT_EQ(Parse()->drafter, v1::DRAFTER_KIND_MODEL);
}

TEST_F(ParseDrafterTest, TwoDraftsNeedASecondServiceAndRoomForATree) {
  EXPECT_THAT(ErrorOf(v1::DRAFTER_KIND_BOTH_MODELS), HasSubstr("no second draft service is configured"));
  defaults_.has_draft_service = defaults_.has_second_draft_service = true;
  speculation().set_draft_tokens(6);
  target_.set_max_tree_nodes(8);
  EXPECT_EQ(Parse(v1::DRAFTER_KIND_BOTH_MODELS)->draft_tokens, 4) << "of each";
  speculation().set_tree("2x1");
  EXPECT_EQ(MetadataOf(Parse(v1::DRAFTER_KIND_BOTH_MODELS).status(), "field"), "speculation.tree");
  speculation().clear_tree();
  speculation().set_rule(v1::RULE_BLOCK);
  EXPECT_THAT(ErrorOf(v1::DRAFTER_KIND_BOTH_MODELS), HasSubstr("another with rule block"));
  speculation().clear_drafter();
  defaults_.drafter = v1::DRAFTER_KIND_BOTH_MODELS;
  EXPECT_EQ(Parse()->drafter, v1::DRAFTER_KIND_MODEL);
}

TEST_F(ParseDrafterTest, OneDraftMakesTheTreeOfASearch) {
  defaults_.has_draft_service = defaults_.has_second_draft_service = true;
  proto_.mutable_beam()->set_width(2);
  EXPECT_THAT(ErrorOf(v1::DRAFTER_KIND_BOTH_MODELS), HasSubstr("one model with beam search"));
}

}  // namespace
}  // namespace outrider
