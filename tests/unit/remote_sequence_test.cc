// What the coordinator believes a server to hold of a sequence, and how answers and refusals correct that.
#include "coordinator/decode/remote_sequence.h"

#include <gtest/gtest.h>

#include "common/spec/status.h"

namespace outrider {
namespace {

absl::Status FailedPrecondition(const char* reason) {
  return MakeError(absl::StatusCode::kFailedPrecondition, reason, "refused");
}

// A server that holds the first n tokens and knows the parameters.
RemoteSequence Holding(size_t n) {
  RemoteSequence remote;
  remote.OnServer(1);
  remote.OnAnswer(n, n, 0);
  return remote;
}

TEST(RemoteSequence, SendsOnlyWhatTheServerLacks) {
  RemoteSequence remote;
  remote.OnServer(1);
  EXPECT_EQ(remote.Base(10), 0u);
  remote.OnAnswer(/*cached=*/10, /*n=*/10, /*accepted=*/0);
  EXPECT_EQ(remote.Base(11), 10u);
}

TEST(RemoteSequence, AfterFullAcceptanceTheDraftLacksItsOwnLastTokenToo) {
  RemoteSequence draft;
  draft.OnServer(1);
  // K = 4: the cache ends one short of the proposal.
  draft.OnAnswer(/*cached=*/10 + 3, /*n=*/10, 0);
  draft.OnVerdict(/*n=*/10, /*accepted=*/4);
  EXPECT_EQ(draft.Base(15), 13u);
}

TEST(RemoteSequence, AfterARejectionTheDraftTruncatesToTheAgreedPrefix) {
  RemoteSequence draft;
  draft.OnServer(1);
  draft.OnAnswer(10 + 3, 10, 0);
  draft.OnVerdict(10, 1);
  EXPECT_EQ(draft.Base(12), 11u);
}

// The draft may not be asked in the round that follows. The tokens after the accepted ones are then not those
// that it drafted.
TEST(RemoteSequence, TheVerdictsOwnTokenIsNotHeldByTheDraft) {
  RemoteSequence draft;
  draft.OnServer(1);
  draft.OnAnswer(10 + 3, 10, 0);
  draft.OnVerdict(10, 1);
  draft.OnVerdict(12, 0);
  EXPECT_EQ(draft.Base(15), 11u);
}

TEST(RemoteSequence, OfWhatTheTargetAcceptedItHoldsThePathAndNotItsOwnToken) {
  RemoteSequence target;
  target.OnServer(1);
  target.OnAnswer(/*cached=*/10 + 4, /*n=*/10, /*accepted=*/2);
  EXPECT_EQ(target.Base(20), 12u);
}

TEST(RemoteSequence, AnotherBootMeansThatNothingIsLeft) {
  RemoteSequence remote;
  remote.OnServer(1);
  remote.OnAnswer(10, 10, 0);
  remote.OnServer(2);
  EXPECT_EQ(remote.Base(11), 0u);
  EXPECT_FALSE(remote.params_known());
}

TEST(RemoteSequence, TheLastTokenIsSentEvenIfItIsHeld) { EXPECT_EQ(Holding(10).Base(10), 9u); }

TEST(RemoteSequence, BeginsAsACopyUntilTheServerKnowsIt) {
  RemoteSequence remote({.of = "first", .tokens = 7});
  EXPECT_EQ(remote.Base(8), 7u);
  EXPECT_EQ(remote.fork_of(), "first");
  EXPECT_FALSE(remote.params_known());
  remote.OnAnswer(8, 8, 0);
  EXPECT_EQ(remote.fork_of(), "");
  EXPECT_TRUE(remote.params_known());
}

TEST(RemoteSequence, AVerdictOnAnotherRoundThanTheLastTellsNothing) {
  RemoteSequence draft = Holding(10);
  draft.OnVerdict(/*n=*/12, /*accepted=*/3);
  EXPECT_EQ(draft.Base(16), 10u);
}

TEST(RemoteSequence, ARefusalForWantOfTokensSendsThemFromWhereTheServerIs) {
  RemoteSequence remote = Holding(10);
  EXPECT_EQ(remote.OnRefusal(FailedPrecondition("BASE_BEYOND_CACHED"), /*cached=*/4), Remedy::kResend);
  EXPECT_EQ(remote.Base(11), 4u);
  EXPECT_TRUE(remote.params_known());
}

TEST(RemoteSequence, ARefusalForOtherTokensSendsAllOfThem) {
  RemoteSequence remote = Holding(10);
  EXPECT_EQ(remote.OnRefusal(FailedPrecondition("PREFIX_MISMATCH"), /*cached=*/10), Remedy::kResend);
  EXPECT_EQ(remote.Base(11), 0u);
  EXPECT_TRUE(remote.params_known());
}

TEST(RemoteSequence, ARefusalForWantOfParametersSendsThemAgainAndNoTokens) {
  RemoteSequence remote = Holding(10);
  EXPECT_EQ(remote.OnRefusal(FailedPrecondition("PARAMS_UNKNOWN"), /*cached=*/10), Remedy::kResend);
  EXPECT_EQ(remote.Base(11), 10u);
  EXPECT_FALSE(remote.params_known());
}

TEST(RemoteSequence, AnUnknownSequenceIsSentWhole) {
  RemoteSequence remote({.of = "first", .tokens = 7});
  EXPECT_EQ(remote.OnRefusal(absl::NotFoundError("unknown"), /*cached=*/0), Remedy::kResend);
  EXPECT_EQ(remote.Base(8), 0u);
  EXPECT_EQ(remote.fork_of(), "");
  EXPECT_FALSE(remote.params_known());
}

TEST(RemoteSequence, AFullServerIsLeftAloneAndHasLostWhatItSays) {
  RemoteSequence remote = Holding(10);
  EXPECT_EQ(remote.OnRefusal(absl::ResourceExhaustedError("full"), /*cached=*/0), Remedy::kWait);
  EXPECT_EQ(remote.Base(11), 0u);
}

TEST(RemoteSequence, OtherErrorsSayNothingOfWhatIsHeld) {
  for (const absl::Status& status :
       {absl::UnavailableError(""), absl::DeadlineExceededError(""), absl::CancelledError(""),
        absl::AbortedError(""), absl::InvalidArgumentError(""), absl::InternalError("")}) {
    RemoteSequence remote = Holding(10);
    EXPECT_EQ(remote.OnRefusal(status, /*cached=*/0), Remedy::kNone) << status;
    EXPECT_EQ(remote.Base(11), 10u) << status;
    EXPECT_TRUE(remote.params_known()) << status;
  }
}

}  // namespace
}  // namespace outrider
