// The parts of the coordinator that need no server: requests and committed tokens.
#include <gmock/gmock.h>

#include <algorithm>

#include "common/rpc/error.h"
#include "coordinator/api/parse_request.h"
#include "coordinator/generation/generation.h"
#include "coordinator/policy/draft_choice.h"
#include "google/rpc/error_details.pb.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const Tokenizer& TestTokenizer() {
  static const Tokenizer* tokenizer =
      Tokenizer::Load("tests/data/text/gpt2-small.tokenizer.json").value().release();
  return *tokenizer;
}

v1::ServerInfo Target() {
  v1::ServerInfo info;
  info.set_vocab_size(static_cast<uint32_t>(TestTokenizer().vocab_size()));
  info.set_max_context(64);
  info.set_max_draft_tokens(8);
  info.set_kv_blocks(100);
  info.set_block_size(16);
  info.add_eos_ids(0);
  return info;
}

v1::GenerateRequest Text(const std::string& text) {
  v1::GenerateRequest request;
  request.set_text(text);
  return request;
}

absl::StatusOr<Request> Parse(const v1::GenerateRequest& proto) {
  return ParseRequest(proto, RequestDefaults(), TestTokenizer(), Target());
}

std::vector<TokenId> Encode(const std::string& text) { return TestTokenizer().Encode(text, false).value(); }

// A round that accepts `accepted` tokens of `draft`, followed by `token`.
v1::GenerateResponse Round(Generation& generation, const std::vector<TokenId>& draft, int accepted,
                           TokenId token, size_t predicted = 0) {
  Proposal proposal;
  for (TokenId id : draft) AppendToChain(id, {}, proposal);
  Verdict verdict;
  verdict.path = ChainPath(static_cast<size_t>(accepted));
  verdict.token = token;
  if (!draft.empty()) {
    verdict.kind =
        accepted == static_cast<int>(draft.size()) ? Verdict::Kind::kBonus : Verdict::Kind::kCorrected;
  }
  return generation.Commit(proposal, verdict, predicted);
}

Generation Start(const v1::GenerateRequest& proto) {
  return Generation(Parse(proto).value(), &TestTokenizer(), Clock::now());
}

// A first round that drafts this text and accepts all of it, which reaches max_tokens.
v1::GenerateResponse RoundOf(const std::string& text, v1::GenerateRequest request) {
  std::vector<TokenId> draft = Encode(text);
  request.mutable_stop()->set_max_tokens(static_cast<uint32_t>(draft.size()));
  Generation generation = Start(request);
  const TokenId last = draft.back();
  draft.pop_back();
  return Round(generation, draft, static_cast<int>(draft.size()), last);
}

TEST(Request, FillsInTheDefaults) {
  const Request request = Parse(Text("The little boy")).value();
  EXPECT_EQ(request.prompt, TestTokenizer().Encode("The little boy", true).value());
  EXPECT_EQ(request.draft_tokens, 5);
  EXPECT_EQ(request.params.rule(), v1::RULE_TOKEN);
  EXPECT_THAT(request.end_ids, ElementsAre(0));
  EXPECT_EQ(request.max_tokens, 64 - static_cast<int>(request.prompt.size()));
}

TEST(Request, RefusesTextThatSpellsATokenBeyondTheModelsVocabulary) {
  const std::vector<TokenId> ids = Encode("The little boy");
  v1::ServerInfo target = Target();
  target.set_vocab_size(static_cast<uint32_t>(*std::max_element(ids.begin(), ids.end())));
  const auto request = ParseRequest(Text("The little boy"), RequestDefaults(), TestTokenizer(), target);
  EXPECT_EQ(ReasonOf(request.status()), "FIELD_INVALID");
  EXPECT_THAT(std::string(request.status().message()), StartsWith("text: "));
}

// Each field out of its range is refused, and the error names the field and the range.
TEST(Request, RefusesWhatIsOutOfRangeAndNamesTheField) {
  struct Case {
    std::string field;
    std::function<void(v1::GenerateRequest&)> spoil;
    std::string reason = "FIELD_INVALID";
  };
  const std::vector<Case> cases = {
      {"prompt", [](auto& r) { r.clear_prompt(); }},
      {"text", [](auto& r) { r.set_text(""); }},
      {"prompt", [](auto& r) { r.set_text(std::string(4000, 'x').append(" y")); }, "CONTEXT_LENGTH_EXCEEDED"},
      {"tokens.ids", [](auto& r) { r.mutable_tokens(); }},
      {"tokens.ids", [](auto& r) { r.mutable_tokens()->add_ids(1 << 20); }},
      {"sampling.temperature", [](auto& r) { r.mutable_sampling()->set_temperature(-1); }},
      {"sampling.temperature", [](auto& r) { r.mutable_sampling()->set_temperature(NAN); }},
      {"sampling.top_p", [](auto& r) { r.mutable_sampling()->set_top_p(0); }},
      {"sampling.top_p", [](auto& r) { r.mutable_sampling()->set_top_p(2); }},
      {"sampling.min_p", [](auto& r) { r.mutable_sampling()->set_min_p(-0.5); }},
      {"sampling.top_k", [](auto& r) { r.mutable_sampling()->set_top_k(0xffffffff); }},
      {"sampling.repetition_penalty", [](auto& r) { r.mutable_sampling()->set_repetition_penalty(-1); }},
      {"sampling.presence_penalty", [](auto& r) { r.mutable_sampling()->set_presence_penalty(-3); }},
      {"sampling.frequency_penalty", [](auto& r) { r.mutable_sampling()->set_frequency_penalty(3); }},
      {"stop.max_tokens",
       [](auto& r) {
         r.mutable_stop()->set_max_tokens(0);
         r.mutable_beam()->set_width(2);
       }},
      {"stop.strings", [](auto& r) { r.mutable_stop()->add_strings(""); }},
      {"stop.strings",
       [](auto& r) {
         for (int i = 0; i < 10'000; ++i) r.mutable_stop()->add_strings("stop");
       }},
      {"stop.token_ids", [](auto& r) { r.mutable_stop()->add_token_ids(1 << 20); }},
      {"speculation.draft_tokens", [](auto& r) { r.mutable_speculation()->set_draft_tokens(9); }},
      {"speculation.rule", [](auto& r) { r.mutable_speculation()->set_rule(static_cast<v1::Rule>(77)); }},
      {"speculation.drafter",
       [](auto& r) { r.mutable_speculation()->set_drafter(static_cast<v1::DrafterKind>(77)); }},
      {"resume_from", [](auto& r) { r.add_resume_from(1 << 20); }},
  };
  for (const Case& c : cases) {
    v1::GenerateRequest request = Text("The little boy");
    c.spoil(request);
    const absl::Status status = Parse(request).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.field;
    EXPECT_EQ(ReasonOf(status), c.reason) << status;
    google::rpc::ErrorInfo info;
    ASSERT_TRUE(ToProto(status).details(0).UnpackTo(&info));
    EXPECT_EQ(info.metadata().at("field"), c.field) << status;
    EXPECT_FALSE(info.metadata().at("range").empty());
  }
}

TEST(Request, ThePromptsLengthDoesNotCountWhatIsResumedFrom) {
  v1::GenerateRequest request = Text("The little boy");
  for (const TokenId token : Encode(" sings in")) request.add_resume_from(static_cast<uint32_t>(token));
  const Request parsed = Parse(request).value();
  EXPECT_EQ(parsed.resumed, Encode(" sings in"));
  EXPECT_EQ(parsed.params.prompt_length(), Encode("The little boy").size());
}

TEST(Generation, CommitsTheAcceptedTokensAndThenTheVerdictsOwn) {
  Generation generation = Start(Text("The little boy"));
  const std::vector<TokenId> words = Encode(" sings in the green");
  ASSERT_GE(words.size(), 4u);
  const v1::GenerateResponse chunk = Round(generation, {words[0], words[1], words[2]}, 2, words[3]);
  EXPECT_EQ(chunk.tokens_size(), 3);
  EXPECT_EQ(chunk.tokens(0).kind(), v1::TOKEN_KIND_ACCEPTED);
  EXPECT_EQ(chunk.tokens(2).kind(), v1::TOKEN_KIND_CORRECTED);
  EXPECT_EQ(chunk.text(), TestTokenizer().Decode(std::vector<TokenId>{words[0], words[1], words[3]}, true));
  EXPECT_FALSE(generation.finished());
}

TEST(Generation, CountsWhatStandsOfThePredictionUpToTheEnd) {
  v1::GenerateRequest request = Text("The little boy");
  request.set_prediction(" sings in the green");
  Generation generation = Start(request);
  const std::vector<TokenId> words = Encode(" sings in");
  Round(generation, {words[0], words[1], words[0]}, 2, words[0], /*predicted=*/3);
  Round(generation, {words[0], words[1]}, 2, words[0], /*predicted=*/1);
  const v1::GenerateResponse last =
      Round(generation, {words[0], words[1], 0, words[0]}, 4, words[0], /*predicted=*/4);
  ASSERT_TRUE(last.has_finish());
  EXPECT_EQ(last.finish().speculation().accepted_prediction_tokens(), 2u + 1u + 3u);
  EXPECT_EQ(last.finish().speculation().prediction_tokens(), Encode(" sings in the green").size());
}

TEST(Generation, AnEndOfTextInTheMiddleOfARoundDiscardsTheRest) {
  Generation generation = Start(Text("The little boy"));
  const std::vector<TokenId> words = Encode(" sings in");
  const v1::GenerateResponse chunk =
      Round(generation, {words[0], words[1], 0, words[0], words[1]}, 5, words[0]);
  ASSERT_TRUE(chunk.has_finish());
  EXPECT_EQ(chunk.finish().reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(chunk.tokens_size(), 3);
  EXPECT_EQ(chunk.finish().usage().completion_tokens(), 3u);
  const v1::SpeculationStats& stats = chunk.finish().speculation();
  EXPECT_EQ(stats.emitted_accepted(), 3u);
  EXPECT_EQ(stats.accepted(), 3u);
  EXPECT_EQ(stats.accepted_after_end(), 2u);
  EXPECT_EQ(stats.accepted_per_position_size(), 5);
  EXPECT_EQ(stats.accepted_per_position(3), 0u);
  EXPECT_DOUBLE_EQ(stats.acceptance_rate(), 3.0 / 5);
  EXPECT_EQ(chunk.finish().speculation().emitted_bonus(), 0u);
  EXPECT_EQ(chunk.text(), TestTokenizer().Decode(std::vector<TokenId>{words[0], words[1]}, true));
}

TEST(Generation, AStopStringInTheMiddleOfARoundDiscardsTheRestAndIsNotSent) {
  v1::GenerateRequest request = Text("The little boy");
  request.mutable_stop()->add_strings("in the");
  Generation generation = Start(request);
  std::string text;
  const std::vector<TokenId> words = Encode(" sings in the green grass");
  v1::GenerateResponse chunk = Round(generation, words, static_cast<int>(words.size()), words[0]);
  ASSERT_TRUE(chunk.has_finish());
  EXPECT_EQ(chunk.text(), " sings ");
  EXPECT_EQ(chunk.finish().stop_string(), "in the");
  EXPECT_LT(chunk.tokens_size(), static_cast<int>(words.size()));
  EXPECT_EQ(static_cast<int>(chunk.finish().usage().completion_tokens()), chunk.tokens_size());
}

TEST(Generation, AStopStringBeforeTheLeastLengthIsText) {
  v1::GenerateRequest request = Text("The little boy");
  request.mutable_stop()->add_strings(" sings");
  const std::vector<TokenId> words = Encode(" sings in the sings");
  request.mutable_sampling()->set_min_tokens(3);
  Generation generation = Start(request);
  const v1::GenerateResponse chunk = Round(generation, words, static_cast<int>(words.size()), words[0]);
  EXPECT_EQ(chunk.text(), " sings in the");
  EXPECT_EQ(chunk.finish().stop_string(), " sings");
}

TEST(Generation, EndsAtMaxTokensInTheMiddleOfARound) {
  v1::GenerateRequest request = Text("The little boy");
  request.mutable_stop()->set_max_tokens(2);
  Generation generation = Start(request);
  const std::vector<TokenId> words = Encode(" sings in the green grass");
  const v1::GenerateResponse chunk = Round(generation, words, 3, words[0]);
  EXPECT_EQ(chunk.finish().reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(chunk.tokens_size(), 2);
}

TEST(Generation, AStopStringThatTheLastAllowedTokenCompletesIsTheReason) {
  v1::GenerateRequest request = Text("The little boy");
  request.mutable_stop()->add_strings("in the");
  const v1::GenerateResponse chunk = RoundOf(" sings in the", request);
  EXPECT_EQ(chunk.finish().reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(chunk.finish().stop_string(), "in the");
  EXPECT_EQ(chunk.text(), " sings ");
}

// The bytes of a character that is never completed become text only when the generation ends.
TEST(Generation, AStopStringThatTheLastTokensUnfinishedCharacterCompletesIsTheReason) {
  v1::GenerateRequest request = Text("The little boy");
  request.mutable_stop()->add_strings("\uFFFD");
  request.mutable_stop()->set_max_tokens(1);
  Generation generation = Start(request);
  const v1::GenerateResponse chunk = Round(generation, {}, 0, Encode("\U0001F600")[0]);
  EXPECT_EQ(chunk.finish().reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(chunk.finish().stop_string(), "\uFFFD");
  EXPECT_EQ(chunk.text(), "");
}

TEST(Generation, TextThatWasHeldBackForAStopStringIsSentAtMaxTokens) {
  v1::GenerateRequest request = Text("The little boy");
  request.mutable_stop()->add_strings("in the green");
  const v1::GenerateResponse chunk = RoundOf(" sings in the", request);
  EXPECT_EQ(chunk.finish().reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(chunk.finish().stop_string(), "");
  EXPECT_EQ(chunk.text(), " sings in the");
}

TEST(Generation, ResumesAfterTheTokensThatWereSentBefore) {
  const std::vector<TokenId> words = Encode(" sings in the green grass");
  v1::GenerateRequest request = Text("The little boy");
  request.add_resume_from(static_cast<uint32_t>(words[0]));
  request.add_resume_from(static_cast<uint32_t>(words[1]));
  Generation generation = Start(request);
  EXPECT_FALSE(generation.FinishedAlready());
  const v1::GenerateResponse chunk = Round(generation, {}, 0, words[2]);
  EXPECT_EQ(chunk.position(), 2u);
  EXPECT_EQ(chunk.text(), TestTokenizer().Decode(std::vector<TokenId>{words[2]}, true));
}

TEST(Generation, AnAnswerThatHadEndedEndsAgainWithoutATarget) {
  v1::GenerateRequest request = Text("The little boy");
  request.add_resume_from(0);
  Generation generation = Start(request);
  const auto chunk = generation.FinishedAlready();
  ASSERT_TRUE(chunk);
  EXPECT_EQ(chunk->finish().reason(), v1::FINISH_REASON_STOP);
}

TEST(DraftChoice, LeavesRoomForTheTokenThatFollowsTheDraft) {
  v1::GenerateRequest request = Text("The little boy");
  request.mutable_stop()->set_max_tokens(4);
  Generation generation = Start(request);
  const TokenId word = Encode(" green")[0];
  EXPECT_EQ(DraftChoice().Choose(generation).most, 0) << "the prompt's own round is plain";
  Round(generation, {}, 0, word);
  EXPECT_EQ(DraftChoice().Choose(generation).most, 2);
  Round(generation, {}, 0, word);
  Round(generation, {}, 0, word);
  EXPECT_EQ(DraftChoice().Choose(generation).most, 0);
}

TEST(Error, CarriesReasonAndMetadataAcrossTheWire) {
  const absl::Status status = FromGrpc(ToGrpc(FieldError("stop.max_tokens", "1 or more", "0")));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(status), "FIELD_INVALID");
  EXPECT_THAT(std::string(status.message()), HasSubstr("1 or more"));
}

TEST(Error, HasTheReasonThatItWasGivenWhateverItsMessageSays) {
  EXPECT_EQ(ReasonOf(NotFiniteError()), "LOGITS_NOT_FINITE");
  EXPECT_EQ(ReasonOf(absl::AbortedError("round_stale")), "ABORTED");
  const absl::Status arrived =
      FromProto(ToProto(MakeError(absl::StatusCode::kAborted, "ROUND_STALE", "old")));
  EXPECT_EQ(ReasonOf(arrived), "ROUND_STALE");
  EXPECT_EQ(arrived.message(), "old");
}

TEST(Error, OfAFieldNamesItUnderItsParent) {
  const absl::Status status = FieldErrorUnder("sampling", OutOfRange("top_p", 2, "(0, 1]"));
  EXPECT_EQ(MetadataOf(status, "field"), "sampling.top_p");
  EXPECT_EQ(MetadataOf(FromGrpc(ToGrpc(status)), "range"), "(0, 1]");
  EXPECT_EQ(status.message(), "sampling.top_p: 2; allowed: (0, 1]");
}

}  // namespace
}  // namespace outrider
