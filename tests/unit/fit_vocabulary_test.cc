#include "coordinator/decode/drafters/model_drafter.h"

#include <gmock/gmock.h>

namespace outrider {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int kTarget = 12;

// An update with ids up to the target's last.
v1::SequenceUpdate Update() {
  v1::SequenceUpdate update;
  update.add_tokens(3);
  v1::SequenceParams& params = *update.mutable_params();
  for (const uint32_t id : {3u, 11u}) {
    params.mutable_sampling()->add_logit_bias()->set_token(id);
    params.mutable_sampling()->add_allowed_ids(id);
    params.add_end_ids(id);
  }
  for (const uint32_t id : {4u, 10u}) params.mutable_sampling()->add_bad_ids(id);
  return update;
}

TEST(FitVocabulary, LeavesOutWhatASmallerDraftLacks) {
  v1::SequenceUpdate update = Update();
  ASSERT_TRUE(FitVocabulary(10, kTarget, update));
  const v1::SamplingParams& sampling = update.params().sampling();
  EXPECT_THAT(sampling.allowed_ids(), ElementsAre(3));
  EXPECT_THAT(sampling.bad_ids(), ElementsAre(4));
  EXPECT_THAT(update.params().end_ids(), ElementsAre(3));
  ASSERT_EQ(sampling.logit_bias_size(), 1);
  EXPECT_EQ(sampling.logit_bias(0).token(), 3u);
}

TEST(FitVocabulary, ForbidsALargerDraftWhatTheTargetLacks) {
  v1::SequenceUpdate update = Update();
  ASSERT_TRUE(FitVocabulary(14, kTarget, update));
  const v1::SamplingParams& sampling = update.params().sampling();
  EXPECT_THAT(sampling.bad_ids(), ElementsAre(4, 10, 12, 13));
  EXPECT_THAT(sampling.allowed_ids(), ElementsAre(3, 11));
  EXPECT_THAT(update.params().end_ids(), ElementsAre(3, 11));
}

TEST(FitVocabulary, LetsADraftAloneThatCouldProposeNothing) {
  v1::SequenceUpdate update = Update();
  update.mutable_params()->mutable_sampling()->set_allowed_ids(0, 10);
  EXPECT_FALSE(FitVocabulary(10, kTarget, update)) << "none of the allowed ids";
  update = Update();
  v1::SamplingParams& sampling = *update.mutable_params()->mutable_sampling();
  sampling.clear_allowed_ids();
  for (uint32_t id = 0; id < 10; ++id) sampling.add_bad_ids(id);
  EXPECT_FALSE(FitVocabulary(10, kTarget, update)) << "only bad ids";
}

TEST(FitVocabulary, LetsADraftAloneThatLacksATokenOfTheSequence) {
  v1::SequenceUpdate update;
  update.add_tokens(9);
  EXPECT_TRUE(FitVocabulary(10, kTarget, update));
  EXPECT_THAT(update.params().sampling().bad_ids(), IsEmpty());
  update.add_tokens(10);
  EXPECT_FALSE(FitVocabulary(10, kTarget, update));
}

}  // namespace
}  // namespace outrider
