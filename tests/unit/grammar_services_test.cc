// Sequences with a grammar, as a coordinator sees them.
#include "absl/synchronization/notification.h"
#include "common/spec/status.h"
#include "tests/unit/model_services_testing.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;

constexpr uint32_t kEnd = kVocab - 1;

// Token i is the text "<i>"; the last one ends a text.
GrammarVocabulary Vocabulary() {
  std::vector<std::string> tokens;
  for (int i = 0; i < kVocab - 1; ++i) tokens.push_back(absl::StrCat("<", i, ">"));
  tokens.emplace_back();
  return {tokens, {static_cast<TokenId>(kEnd)}};
}

class GrammarServicesTest : public ModelServicesTest {
 protected:
  static Sequence WithRegex(const std::string& regex, char name = 'g') {
    Sequence sequence;
    sequence.id = std::string(16, name);
    sequence.params.mutable_sampling()->mutable_grammar()->set_regex(regex);
    return sequence;
  }
  // The target's tokens, asked for one at a time.
  std::vector<uint32_t> Say(Sequence sequence, int count) {
    std::vector<uint32_t> said;
    for (int i = 0; i < count; ++i) {
      const v1::VerifyResult result = targets_.Ask(Verify(sequence));
      EXPECT_TRUE(result.has_verdict()) << FromProto(result.status());
      said.push_back(result.verdict().token());
      sequence.tokens.push_back(said.back());
    }
    return said;
  }

  // The item after one of `sequence`, with one token more and without parameters.
  static v1::TargetItem Next(Sequence& sequence, uint32_t token) {
    const std::vector<TokenId> before(sequence.tokens.begin(), sequence.tokens.end());
    v1::TargetItem item = Verify(sequence);
    v1::SequenceUpdate* update = item.mutable_verify()->mutable_sequence();
    update->set_base(static_cast<uint32_t>(before.size()));
    update->set_prefix_hash(PrefixHash(before));
    update->clear_tokens();
    update->add_tokens(token);
    update->clear_params();
    return item;
  }

  // The cache's thread calls functions that use the services, so it must end before them.
  void TearDown() override { grammars_.reset(); }

  // Lets grammars be compiled from now on.
  void Begin() { may_compile_.Notify(); }

  absl::Notification may_compile_;
  std::optional<GrammarCache> grammars_{std::in_place, [this] {
                                          may_compile_.WaitForNotification();
                                          return Vocabulary();
                                        }};
  std::unique_ptr<StreamService> grammar_target_ =
      MakeTargetService(*target_worker_, Info(), &*grammars_, /*tracer=*/nullptr);
  std::unique_ptr<StreamService> grammar_draft_ =
      MakeDraftService(*draft_worker_, Info(), &*grammars_, /*tracer=*/nullptr, /*default_top_n=*/4);
  TargetConnection targets_{grammar_target_.get(), MakeStub<v1::Target>, OpenStream};
  DraftConnection drafts_{grammar_draft_.get(), MakeStub<v1::Draft>, OpenDraftStream};
};

TEST_F(GrammarServicesTest, WhatIsSaidFollowsTheGrammarAndEndsWithIt) {
  Begin();
  const Sequence sequence = WithRegex("(<3>|<8>){2}");
  const std::vector<uint32_t> said = Say(sequence, 3);
  EXPECT_TRUE(said[0] == 3 || said[0] == 8) << said[0];
  EXPECT_TRUE(said[1] == 3 || said[1] == 8) << said[1];
  EXPECT_EQ(said[2], kEnd);
  Sequence drafted = WithRegex("(<3>|<8>){2}", 'h');
  const v1::Verdict verdict = targets_.Ask(Verify(drafted, said)).verdict();
  EXPECT_THAT(verdict.accepted(), ElementsAre(0, 1, 2)) << "the mask of each row sees the tokens before it";
}

TEST_F(GrammarServicesTest, WhatTheGrammarForbidsIsCorrected) {
  Begin();
  Sequence sequence = WithRegex("<3><8><5>");
  const v1::Verdict verdict = targets_.Ask(Verify(sequence, {3, 9, 5})).verdict();
  EXPECT_THAT(verdict.accepted(), ElementsAre(0));
  EXPECT_EQ(verdict.token(), 8u);
}

TEST_F(GrammarServicesTest, ADraftProposesWhatTheGrammarAllowsOnceItIsCompiled) {
  Sequence sequence = WithRegex("(<3>|<8>)<5><7>");
  const auto propose = [&] {
    const v1::ProposeResult result = drafts_.Ask(Propose(sequence, 3));
    EXPECT_EQ(result.nodes_size(), 3) << FromProto(result.status());
    std::vector<uint32_t> tokens;
    for (const v1::DraftNode& node : result.nodes()) tokens.push_back(node.token());
    return tokens;
  };
  const std::vector<uint32_t> free = propose();
  Begin();
  Say(WithRegex("(<3>|<8>)<5><7>", 't'), 1);
  const std::vector<uint32_t> held = propose();
  EXPECT_TRUE(held[0] == 3 || held[0] == 8) << held[0];
  EXPECT_THAT(std::vector<uint32_t>(held.begin() + 1, held.end()), ElementsAre(5, 7));
  EXPECT_NE(free, held) << "it does not wait";
}

TEST_F(GrammarServicesTest, ATargetRefusesAGrammarThatADraftDoesWithout) {
  Begin();
  Sequence sequence = WithRegex("(<3>");
  const absl::Status refused = FromProto(targets_.Ask(Verify(sequence)).status());
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_EQ(MetadataOf(refused, "field"), "grammar") << refused;
  EXPECT_EQ(drafts_.Ask(Propose(sequence, 3)).nodes_size(), 3);
}

TEST_F(GrammarServicesTest, AServerWithoutATokenizerRefusesGrammars) {
  Sequence sequence = WithRegex("<3>");
  const absl::Status refused = FromProto(target_.Ask(Verify(sequence)).status());
  EXPECT_EQ(MetadataOf(refused, "field"), "grammar") << refused;
}

TEST_F(GrammarServicesTest, WhereNoTokenIsLeftTheTargetSaysSoAndADraftProposesNothing) {
  Begin();
  Sequence sequence = WithRegex("<3>");
  Say(sequence, 1);
  sequence.params.mutable_sampling()->add_bad_ids(3);
  sequence.id = std::string(16, 'n');
  EXPECT_EQ(ReasonOf(FromProto(targets_.Ask(Verify(sequence)).status())), Controls::kNoTokenLeft);
  const v1::ProposeResult result = drafts_.Ask(Propose(sequence, 3));
  EXPECT_FALSE(result.has_status()) << FromProto(result.status());
  EXPECT_EQ(result.nodes_size(), 0);
}

TEST_F(GrammarServicesTest, ItemsOfASequenceKeepTheirOrderWhileItsGrammarIsCompiled) {
  Sequence sequence = WithRegex("<3><8>"), other;
  other.id = std::string(16, 'o');
  targets_.Send(Verify(sequence));
  targets_.Send(Next(sequence, 3));
  EXPECT_EQ(targets_.Ask(Verify(other)).sequence_id(), other.id) << "others do not wait";
  Begin();
  // The first item may be answered or superseded. If the second came first, it would find no sequence.
  v1::VerifyResult result = targets_.Receive();
  if (result.round() == 1) result = targets_.Receive();
  EXPECT_EQ(result.verdict().token(), 8u) << FromProto(result.status());
}

TEST_F(GrammarServicesTest, ACopyFollowsTheGrammarOfItsOrigin) {
  Begin();
  Sequence origin = WithRegex("<3><8>(<8>|<9>)");
  EXPECT_THAT(Say(origin, 2), ElementsAre(3, 8));
  Sequence copy = origin;
  copy.id = std::string(16, 'c');
  copy.tokens.push_back(3);
  v1::TargetItem item = Next(copy, 8);
  item.mutable_verify()->mutable_sequence()->set_fork_of(origin.id);
  const v1::VerifyResult result = targets_.Ask(item);
  const uint32_t token = result.verdict().token();
  EXPECT_TRUE(token == 8 || token == 9) << token << FromProto(result.status());
}

}  // namespace
}  // namespace outrider
