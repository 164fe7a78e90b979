// The services of draft and target with a real model of random weights, as a coordinator sees them.
#include "tests/unit/model_services_testing.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

TEST_F(ModelServicesTest, PenaltiesOfARowSeeTheDraftedTokensBeforeIt) {
  for (const auto& [repetition, presence, frequency] :
       std::vector<std::tuple<float, float, float>>{{1.8f, 0, 0}, {1, 2, 0}, {1, 0, 2}}) {
    Sequence sequence;
    // Only a few tokens are allowed, so that emitted tokens come again.
    for (uint32_t id : {3, 8, 21, 40}) sequence.params.mutable_sampling()->add_allowed_ids(id);
    const std::vector<uint32_t> free = Plain(sequence, 7);
    sequence.params.mutable_sampling()->set_repetition_penalty(repetition);
    sequence.params.mutable_sampling()->set_presence_penalty(presence);
    sequence.params.mutable_sampling()->set_frequency_penalty(frequency);
    sequence.id = std::string(16, static_cast<char>('b' + next_plain_ % 7));
    EXPECT_NE(Plain(sequence, 7), free) << "the penalty makes no difference";
    ExpectThatDraftedTokensCount(sequence);
  }
}

TEST_F(ModelServicesTest, TheLeastNumberOfTokensCountsTheDraftedTokensBeforeARow) {
  Sequence sequence;
  const uint32_t first = Plain(sequence, 1)[0];
  // The model's first token becomes the end of text, which is held back for three tokens.
  sequence.params.add_end_ids(first);
  v1::LogitBias* bias = sequence.params.mutable_sampling()->add_logit_bias();
  bias->set_token(first);
  bias->set_bias(100);
  sequence.params.mutable_sampling()->set_min_tokens(3);
  const std::vector<uint32_t> said = Plain(sequence, 5);
  EXPECT_EQ(std::count(said.begin(), said.begin() + 3, first), 0);
  EXPECT_EQ(said[3], first);
  ExpectThatDraftedTokensCount(sequence);
}

// Tokens that are sent again after a loss still count as output.
TEST_F(ModelServicesTest, OutputThatIsSentWithThePromptIsStillOutput) {
  Sequence sequence;
  const std::vector<uint32_t> said = Plain(sequence, 1);
  v1::LogitBias* bias = sequence.params.mutable_sampling()->add_logit_bias();
  bias->set_token(said[0]);
  bias->set_bias(100);
  sequence.params.mutable_sampling()->set_frequency_penalty(2);
  Sequence resumed = sequence;
  resumed.tokens.insert(resumed.tokens.end(), 60, said[0]);
  EXPECT_NE(target_.Ask(Verify(resumed)).verdict().token(), said[0]) << "it was said sixty times";
  resumed.params.set_prompt_length(65);
  resumed.id = std::string(16, 'q');
  EXPECT_EQ(target_.Ask(Verify(resumed)).verdict().token(), said[0]) << "none of them is output";
}

// The engine hangs until the cancellation has arrived.
TEST_F(ModelServicesTest, ACancelledItemIsNotAnsweredAndItsSequenceGoesOn) {
  const auto hold = std::make_shared<testing::Hold>();
  const std::unique_ptr<Worker> worker = testing::StartHeldWorker(hold, {});
  const std::unique_ptr<StreamService> service =
      MakeTargetService(*worker, Info(), /*grammars=*/nullptr, /*tracer=*/nullptr);
  TargetConnection target(service.get(), MakeStub<v1::Target>, OpenStream);
  Sequence first, sequence;
  first.id = std::string(16, 'f');
  target.Send(Verify(first));
  hold->AwaitReached();
  target.Send(Verify(sequence));
  v1::TargetItem cancel;
  cancel.mutable_cancel()->set_sequence_id(sequence.id);
  cancel.mutable_cancel()->set_round(sequence.round);
  target.Send(cancel);
  target.Send(Verify(sequence));
  EXPECT_EQ(ReasonOf(FromProto(target.Ask(v1::TargetItem()).status())), "ITEM_EMPTY") << "all have arrived";
  hold->LetGo();
  std::map<std::string, uint64_t> answered;
  for (int i = 0; i < 2; ++i) {
    const v1::VerifyResult result = target.Receive();
    EXPECT_TRUE(result.has_verdict()) << FromProto(result.status());
    answered[result.sequence_id()] = result.round();
  }
  EXPECT_EQ(answered[sequence.id], 2u);
}

TEST_F(ModelServicesTest, ADraftThatIsToStopSaysHowSureItWasOfEachToken) {
  Sequence sequence;
  const auto ask = [&](std::vector<float> acceptance, float least) {
    v1::DraftItem item = Propose(sequence, 4);
    v1::DraftStop* stop = item.mutable_propose()->mutable_stop();
    stop->mutable_acceptance()->Add(acceptance.begin(), acceptance.end());
    stop->set_least(least);
    return draft_.Ask(std::move(item));
  };
  EXPECT_TRUE(draft_.Ask(Propose(sequence, 4)).confidence().empty());
  const v1::ProposeResult whole = ask({}, 2);
  EXPECT_EQ(whole.nodes_size(), 4);
  EXPECT_EQ(whole.confidence_size(), 4);
  const v1::ProposeResult one = ask({.5f, .5f}, 2);
  EXPECT_EQ(one.nodes_size(), 1);
  EXPECT_THAT(one.confidence(), ElementsAre(whole.confidence(0)));
}

TEST_F(ModelServicesTest, ATokenThatIsDrawnFirstIsToldBeforeTheRestIsDrafted) {
  Sequence sequence;
  v1::DraftItem item = Propose(sequence, 3);
  item.mutable_propose()->set_draw_next(true);
  item.mutable_propose()->set_alternatives(2);
  const v1::ProposeResult first = draft_.Ask(item);
  const v1::ProposeResult whole = draft_.Receive();
  EXPECT_TRUE(first.partial());
  EXPECT_THAT(first.nodes(), IsEmpty());
  EXPECT_FALSE(whole.partial());
  EXPECT_EQ(first.next().token(), whole.next().token());
  EXPECT_EQ(whole.next().parent(), -1);
  EXPECT_EQ(whole.nodes_size(), 3);
  ASSERT_EQ(whole.alternatives_size(), 3);
  EXPECT_EQ(whole.alternatives(0).ids_size(), 2);
  Sequence plain;
  plain.id = std::string(16, 'n');
  const v1::ProposeResult nodes = draft_.Ask(Propose(plain, 4));
  EXPECT_EQ(nodes.nodes(0).token(), whole.next().token());
  EXPECT_EQ(nodes.nodes(1).token(), whole.nodes(0).token()) << "greedy";
}

TEST_F(ModelServicesTest, ACancellationOfAnotherRoundChangesNothing) {
  Sequence sequence;
  v1::TargetItem cancel;
  cancel.mutable_cancel()->set_sequence_id(sequence.id);
  cancel.mutable_cancel()->set_round(7);
  target_.Send(cancel);
  EXPECT_TRUE(target_.Ask(Verify(sequence)).has_verdict());
}

TEST_F(ModelServicesTest, AProposalHasItsDistributionsCutToWhatIsAskedFor) {
  Sequence sequence;
  sequence.params.mutable_sampling()->set_temperature(1);
  const auto sizes = [this](Sequence& sequence) {
    std::vector<int> sizes;
    const v1::ProposeResult result = draft_.Ask(Propose(sequence, 3));
    EXPECT_EQ(result.cached(), sequence.tokens.size() + 2);
    for (const v1::DraftNode& node : result.nodes()) sizes.push_back(node.q().sparse().ids_size());
    return sizes;
  };
  EXPECT_THAT(sizes(sequence), ElementsAre(4, 4, 4)) << "the service's default";
  Sequence wide = sequence;
  wide.id = std::string(16, 'w');
  wide.params.set_draft_top_n(9);
  EXPECT_THAT(sizes(wide), ElementsAre(9, 9, 9));
}

TEST_F(ModelServicesTest, TheDraftsOwnTemperatureIsTheDraftsOnly) {
  Sequence sequence;
  sequence.params.mutable_sampling()->set_temperature(1);
  sequence.params.set_draft_temperature(0);
  const v1::ProposeResult proposed = draft_.Ask(Propose(sequence, 3));
  ASSERT_EQ(proposed.nodes_size(), 3);
  for (const v1::DraftNode& node : proposed.nodes()) {
    EXPECT_TRUE(node.q().has_point_mass());
  }
  Sequence same = sequence;
  same.params.clear_draft_temperature();
  same.round = 0;
  sequence.round = 0;
  same.id = std::string(16, 's');
  EXPECT_EQ(target_.Ask(Verify(sequence)).verdict().token(), target_.Ask(Verify(same)).verdict().token());
}

TEST_F(ModelServicesTest, DraftAndTargetOfOneModelAgreeOnAGreedyChain) {
  Sequence sequence;
  sequence.params.mutable_sampling()->set_presence_penalty(1);
  Sequence copy = sequence;
  std::vector<uint32_t> drafted;
  const v1::ProposeResult proposed = draft_.Ask(Propose(sequence, 5));
  for (const v1::DraftNode& node : proposed.nodes()) drafted.push_back(node.token());
  EXPECT_THAT(drafted, ElementsAreArray(Plain(copy, 5)));
}

TEST_F(ModelServicesTest, WhatCannotBeIsRefusedUnderTheItemsOwnName) {
  Sequence sequence;
  v1::DraftItem item = Propose(sequence, 9);
  const v1::ProposeResult long_draft = draft_.Ask(item);
  EXPECT_EQ(ReasonOf(FromProto(long_draft.status())), "K_OUT_OF_RANGE");
  EXPECT_EQ(long_draft.sequence_id(), sequence.id);
  EXPECT_EQ(long_draft.round(), sequence.round);
  EXPECT_THAT(long_draft.nodes(), IsEmpty());
  EXPECT_EQ(ReasonOf(FromProto(target_.Ask(v1::TargetItem()).status())), "ITEM_EMPTY");
  Sequence nameless;
  nameless.id = "short";
  EXPECT_EQ(ReasonOf(FromProto(target_.Ask(Verify(nameless)).status())), "SEQUENCE_ID_INVALID");
}

TEST_F(ModelServicesTest, AProposalOfTheTargetsOwnThatCannotBeIsRefused) {
  using Change = std::function<void(v1::VerifyItem&)>;
  v1::ServerInfo info = Info();
  info.set_max_tree_nodes(12);
  info.add_proposers()->set_proposer(v1::PROPOSER_MEDUSA);
  info.add_proposers()->set_proposer(v1::PROPOSER_EAGLE);
  const std::unique_ptr<StreamService> service =
      MakeTargetService(*target_worker_, info, /*grammars=*/nullptr, /*tracer=*/nullptr);
  TargetConnection target(service.get(), MakeStub<v1::Target>, OpenStream);
  Sequence sequence;
  const auto ask = [&](uint32_t k, const Change& change) {
    v1::TargetItem item = Verify(sequence);
    item.mutable_verify()->mutable_propose()->set_draft_tokens(k);
    change(*item.mutable_verify());
    return FromProto(target.Ask(item).status());
  };
  const auto tree = [](uint32_t nodes) {
    return [nodes](v1::VerifyItem& item) { item.mutable_propose()->mutable_tree()->set_budget(nodes); };
  };
  for (const auto& [k, change, reason] :
       {std::tuple<uint32_t, Change, std::string>(
            2, [](auto& item) { item.set_append_only(true); }, "PROPOSE_UNSUPPORTED"),
        {2, [](auto& item) { item.set_candidates(3); }, "PROPOSE_UNSUPPORTED"},
        {2, [](auto& item) { item.set_prompt_logprobs(0); }, "PROPOSE_UNSUPPORTED"},
        {0, [](auto&) {}, "K_OUT_OF_RANGE"},
        {9, [](auto&) {}, "K_OUT_OF_RANGE"},
        {3, tree(0), "TREE_OUT_OF_RANGE"},
        {3, tree(13), "TREE_OUT_OF_RANGE"}}) {
    const absl::Status status = ask(k, change);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(ReasonOf(status), reason) << status;
  }
  EXPECT_TRUE(ask(8, [](auto&) {}).ok());
  EXPECT_TRUE(ask(3, tree(12)).ok());
  sequence.params.set_proposer(v1::PROPOSER_PASS);
  const absl::Status lacking = ask(2, [](auto&) {});
  EXPECT_EQ(ReasonOf(lacking), "PROPOSER_UNKNOWN");
  EXPECT_THAT(std::string(lacking.message()),
              ::testing::EndsWith("proposer: pass; this target has medusa, eagle"));
}

}  // namespace
}  // namespace outrider
