// Two drafts for one request, here on one server.
#include "coordinator/decode/drafters/paired_drafter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/registry.h>

#include "coordinator/decode/drafters/model_drafter.h"
#include "tests/unit/pool_testing.h"
#include "tests/unit/test_tokenizer.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using DraftAction = FakeDraft::Action;

class PairedDrafterTest : public PoolFixture<FakeDraft> {
 protected:
  void SetUp() override {
    // The tokens of an answer are the number of the item.
    server_.Do([this](const v1::DraftItem& item, v1::ProposeResult* result) {
      sent_.push_back(UpdateOf(item));
      if (sent_.size() == silent_) return DraftAction::kIgnore;
      for (uint32_t i = 0; i < item.propose().draft_tokens(); ++i) {
        v1::DraftNode* node = result->add_nodes();
        node->set_token(static_cast<uint32_t>(sent_.size()));
        node->set_parent(static_cast<int>(i) - 1);
        if (rule_ != v1::RULE_COUPLED) node->mutable_q()->mutable_point_mass();
      }
      result->set_cached(result->cached() + item.propose().draft_tokens() - 1);
      return DraftAction::kAnswer;
    });
    Connect();
  }

  void Begin(v1::Rule rule) {
    rule_ = rule;
    Request request;
    request.prompt.assign(3, 5);
    request.max_tokens = 100;
    request.params.set_rule(rule);
    request.params.set_sample_index(7);
    generation_.emplace(std::move(request), &TestTokenizer(), Clock::now());
    const auto make = [this](ModelDrafter::Place place) {
      return std::make_unique<ModelDrafter>(&*generation_, pool_.get(), &metrics_, kBudget, 4096, Fork(),
                                            place);
    };
    drafter_.emplace(&*generation_, make(ModelDrafter::Place::kFirst), make(ModelDrafter::Place::kSecond));
  }
  Proposal Draft(int k) {
    v1::ItemTiming timing;
    drafter_->Begin({k});
    return Run(drafter_->Take(&timing));
  }

  static constexpr auto kBudget = std::chrono::milliseconds(200);
  v1::Rule rule_ = v1::RULE_TOKEN;
  std::vector<v1::SequenceUpdate> sent_;
  size_t silent_ = 0;  // the item, counted from 1, that gets no answer
  prometheus::Registry registry_;
  Metrics metrics_{registry_, 1};
  std::optional<Generation> generation_;
  std::optional<PairedDrafter> drafter_;
};

std::vector<int> Parents(const Proposal& proposal) {
  std::vector<int> parents;
  for (const ProposalNode& node : proposal) parents.push_back(node.parent);
  return parents;
}

TEST_F(PairedDrafterTest, TheTwoChainsAreBranchesOfOneTree) {
  Begin(v1::RULE_TOKEN);
  const Proposal tree = Draft(2);
  EXPECT_THAT(Parents(tree), ElementsAre(-1, 0, -1, 2));
  EXPECT_NE(tree[0].token, tree[2].token);
}

TEST_F(PairedDrafterTest, TheSecondDrawsWithNumbersOfItsOwn) {
  Begin(v1::RULE_TOKEN);
  Draft(2);
  ASSERT_EQ(sent_.size(), 2u);
  EXPECT_NE(sent_[0].sequence_id(), sent_[1].sequence_id());
  EXPECT_NE(sent_[0].params_hash(), sent_[1].params_hash());
  EXPECT_EQ(sent_[0].params().sample_index(), 7u);
  EXPECT_NE(sent_[1].params().sample_index(), 7u);
}

TEST_F(PairedDrafterTest, UnderTheCoupledRuleBothUseTheTargetsNumbers) {
  Begin(v1::RULE_COUPLED);
  Draft(2);
  ASSERT_EQ(sent_.size(), 2u);
  EXPECT_EQ(sent_[0].params().sample_index(), sent_[1].params().sample_index());
}

TEST_F(PairedDrafterTest, EachLearnsWhichOfItsTokensStand) {
  Begin(v1::RULE_TOKEN);
  const Proposal tree = Draft(3);
  Verdict verdict;
  verdict.path = {3, 4};  // the first two of the second draft
  verdict.token = 9;
  generation_->Commit(tree, verdict, 0);
  drafter_->OnVerdict(3, verdict);
  sent_.clear();
  Draft(3);
  ASSERT_EQ(sent_.size(), 2u);
  EXPECT_THAT(sent_[0].tokens(), ElementsAre(tree[3].token, tree[4].token, 9)) << "none of the first's stand";
  EXPECT_THAT(sent_[1].tokens(), ElementsAre(9));
}

TEST_F(PairedDrafterTest, OneOfThemIsEnough) {
  for (const size_t silent : {1, 2}) {
    silent_ = silent;
    sent_.clear();
    Begin(v1::RULE_COUPLED);
    EXPECT_THAT(Parents(Draft(2)), ElementsAre(-1, 0)) << silent;
    EXPECT_EQ(drafter_->status(), DraftStatus::kUsable);
    drafter_->Stop();
  }
}

}  // namespace
}  // namespace outrider
