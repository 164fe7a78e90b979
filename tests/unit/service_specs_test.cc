// What the draft and target services require of their engines.
#include <gtest/gtest.h>

#include "draft_service/draft_service.h"
#include "target_service/target_service.h"

namespace outrider {
namespace {

TEST(ServiceSpecs, EachModelIsLoadedForItsRole) {
  EXPECT_EQ(DraftSpec().role, ModelRole::kDraft);
  EXPECT_EQ(TargetSpec().role, ModelRole::kTarget);
}

}  // namespace
}  // namespace outrider
