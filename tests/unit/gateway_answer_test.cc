// Converts chunks of generations to answers of the OpenAI API, complete and streamed.
#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_join.h"
#include "coordinator/openai/openai_answer.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;
using Json = nlohmann::json;

OpenAiRequest RequestFor(Endpoint endpoint, const std::string& more = "",
                         const std::string& text = R"(["Once", "Twice"])") {
  const std::string prompt = endpoint == Endpoint::kChat
                                 ? R"("messages": [{"role": "user", "content": "hi"}])"
                                 : R"("prompt": )" + text;
  return ParseOpenAiRequest(endpoint, "{" + prompt + (more.empty() ? "}" : "," + more + "}")).value();
}

Json Whole(OpenAiAnswer& answer) { return Json::parse(absl::StrJoin(answer.Body(), "")); }

AnswerHeader Header() { return {.id = "id-1", .created = 17, .model = "tiny"}; }

void Position(v1::PositionLogprobs* position, const std::string& text, double logprob) {
  position->mutable_token()->set_text(text);
  position->mutable_token()->set_logprob(logprob);
  v1::TokenLogprob* best = position->add_top();
  best->set_text("best");
  best->set_logprob(-0.25);
}

v1::GenerateResponse Chunk(const std::string& text, uint32_t sample = 0) {
  v1::GenerateResponse chunk;
  chunk.set_text(text);
  chunk.set_sample(sample);
  v1::GeneratedToken* token = chunk.add_tokens();
  token->set_text(text);
  return chunk;
}

v1::GenerateResponse WithLogprob(v1::GenerateResponse chunk, double logprob) {
  Position(chunk.mutable_tokens(0)->mutable_logprobs(), chunk.text(), logprob);
  return chunk;
}

v1::GenerateResponse Last(v1::GenerateResponse chunk, v1::FinishReason reason, const std::string& stop = "") {
  v1::Finish* finish = chunk.mutable_finish();
  finish->set_reason(reason);
  finish->set_stop_string(stop);
  finish->mutable_usage()->set_prompt_tokens(10);
  finish->mutable_usage()->set_completion_tokens(4);
  finish->mutable_usage()->set_cached_prompt_tokens(chunk.sample() == 0 ? 8 : 9);
  v1::SpeculationStats* stats = finish->mutable_speculation();
  stats->set_drafted(8);
  stats->set_accepted(2);
  stats->set_drafts(2);
  stats->set_rounds(3);
  stats->set_exact(true);
  return chunk;
}

// The JSON objects of a stream's events, without the final one, which is not JSON.
std::vector<Json> Events(const std::string& stream) {
  std::vector<Json> events;
  for (size_t at = 0; at < stream.size();) {
    EXPECT_EQ(stream.substr(at, 6), "data: ");
    const size_t end = stream.find("\n\n", at);
    const std::string data = stream.substr(at + 6, end - at - 6);
    events.push_back(data == "[DONE]" ? Json("done") : Json::parse(data));
    at = end + 2;
  }
  return events;
}

TEST(OpenAiAnswer, OrdersChoicesByPromptAndSampleAndSumsTheirUsage) {
  const OpenAiRequest request = RequestFor(Endpoint::kCompletions, R"("n": 2)");
  OpenAiAnswer answer(&request, Header());
  answer.Add(1, Chunk("c"));
  answer.Add(0, Chunk("a"));
  answer.Add(0, Last(Chunk("b", 1), v1::FINISH_REASON_LENGTH));
  answer.Add(1, Last(Chunk("d", 1), v1::FINISH_REASON_STOP, "END"));
  answer.Add(0, Last(Chunk("A"), v1::FINISH_REASON_STOP));
  answer.Add(1, Last(Chunk("C"), v1::FINISH_REASON_STOP));
  const Json whole = Whole(answer);
  EXPECT_EQ(whole["id"], "id-1");
  EXPECT_EQ(whole["object"], "text_completion");
  EXPECT_EQ(whole["created"], 17);
  EXPECT_EQ(whole["model"], "tiny");
  std::vector<std::string> texts, reasons;
  for (const Json& choice : whole["choices"]) {
    EXPECT_EQ(choice["index"], texts.size());
    texts.push_back(choice["text"]);
    reasons.push_back(choice["finish_reason"]);
  }
  EXPECT_THAT(texts, ElementsAre("aA", "b", "cC", "d"));
  EXPECT_THAT(reasons, ElementsAre("stop", "length", "stop", "stop"));
  EXPECT_EQ(whole["choices"][3]["stop_reason"], "END");
  EXPECT_TRUE(whole["choices"][0]["stop_reason"].is_null());
  EXPECT_TRUE(whole["choices"][0]["logprobs"].is_null());
  // A prompt counts once, however many samples it has.
  EXPECT_EQ(whole["usage"]["prompt_tokens"], 20);
  EXPECT_EQ(whole["usage"]["completion_tokens"], 16);
  EXPECT_EQ(whole["usage"]["total_tokens"], 36);
  EXPECT_EQ(whole["usage"]["prompt_tokens_details"]["cached_tokens"], 16);
  EXPECT_EQ(whole["usage"]["speculation"]["drafted"], 32);
  EXPECT_EQ(whole["usage"]["speculation"]["acceptance_rate"], 0.25);
  EXPECT_EQ(whole["usage"]["speculation"]["mean_accepted_length"], 2);
  EXPECT_EQ(whole["usage"]["speculation"]["exact"], true);
  EXPECT_EQ(whole["usage"]["speculation"]["schedule"], "lockstep");
}

TEST(OpenAiAnswer, AChatsAnswerIsAMessage) {
  const OpenAiRequest request = RequestFor(Endpoint::kChat);
  OpenAiAnswer answer(&request, Header());
  answer.Add(0, Chunk("Hello"));
  answer.Add(0, Last(Chunk(" you"), v1::FINISH_REASON_STOP));
  const Json whole = Whole(answer);
  EXPECT_EQ(whole["object"], "chat.completion");
  EXPECT_EQ(whole["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(whole["choices"][0]["message"]["content"], "Hello you");
}

TEST(OpenAiAnswer, AStreamSaysEachPieceOnceAndClosesWithUsage) {
  const OpenAiRequest request =
      RequestFor(Endpoint::kChat, R"("stream": true, "stream_options": {"include_usage": true})");
  OpenAiAnswer answer(&request, Header());
  EXPECT_EQ(answer.AddAsEvent(0, Chunk("")), "") << "held back for a stop string";
  std::string stream = answer.AddAsEvent(0, Chunk("Hel"));
  stream += answer.AddAsEvent(0, Chunk("lo"));
  stream += answer.AddAsEvent(0, Last(Chunk(""), v1::FINISH_REASON_LENGTH));
  stream += answer.LastEvents();
  const std::vector<Json> events = Events(stream);
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(events[0]["object"], "chat.completion.chunk");
  EXPECT_EQ(events[0]["choices"][0]["delta"], Json::object({{"role", "assistant"}, {"content", "Hel"}}));
  EXPECT_EQ(events[1]["choices"][0]["delta"], Json::object({{"content", "lo"}}));
  EXPECT_TRUE(events[1]["choices"][0]["finish_reason"].is_null());
  EXPECT_TRUE(events[1]["usage"].is_null());
  EXPECT_EQ(events[2]["choices"][0]["delta"], Json::object());
  EXPECT_EQ(events[2]["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(events[3]["choices"], Json::array());
  EXPECT_EQ(events[3]["usage"]["completion_tokens"], 4);
  EXPECT_EQ(events[4], "done");
}

TEST(OpenAiAnswer, AStreamWithoutUsageEndsWithoutIt) {
  const OpenAiRequest request = RequestFor(Endpoint::kCompletions, R"("stream": true)");
  OpenAiAnswer answer(&request, Header());
  std::string stream = answer.AddAsEvent(1, Chunk("a"));
  stream += answer.LastEvents();
  const std::vector<Json> events = Events(stream);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0]["choices"][0]["index"], 1);
  EXPECT_EQ(events[0]["choices"][0]["text"], "a");
  EXPECT_FALSE(events[0].contains("usage"));
}

TEST(OpenAiAnswer, CompletionsLogprobsAreListsWhoseOffsetsCountCharacters) {
  const OpenAiRequest request = RequestFor(Endpoint::kCompletions, R"("logprobs": 1, "stream": true)");
  OpenAiAnswer answer(&request, Header());
  std::string stream = answer.AddAsEvent(0, WithLogprob(Chunk("caf\u00e9"), -1.5));
  stream += answer.AddAsEvent(0, WithLogprob(Chunk("!"), -HUGE_VAL));
  const std::vector<Json> events = Events(stream);
  const Json first = events[0]["choices"][0]["logprobs"], second = events[1]["choices"][0]["logprobs"];
  EXPECT_EQ(first["tokens"], Json::array({"caf\u00e9"}));
  EXPECT_EQ(first["token_logprobs"], Json::array({-1.5}));
  EXPECT_EQ(first["top_logprobs"], Json::array({Json::object({{"best", -0.25}, {"caf\u00e9", -1.5}})}));
  EXPECT_EQ(first["text_offset"], Json::array({0}));
  EXPECT_EQ(second["text_offset"], Json::array({4}));
  EXPECT_EQ(second["token_logprobs"], Json::array({-9999.0})) << "JSON has no infinity";
}

TEST(OpenAiAnswer, ChatLogprobsAreObjects) {
  const OpenAiRequest request = RequestFor(Endpoint::kChat, R"("logprobs": true, "top_logprobs": 1)");
  OpenAiAnswer answer(&request, Header());
  answer.Add(0, Last(WithLogprob(Chunk("h\u00e9"), -0.5), v1::FINISH_REASON_STOP));
  const Json token = Whole(answer)["choices"][0]["logprobs"]["content"][0];
  EXPECT_EQ(token["token"], "h\u00e9");
  EXPECT_EQ(token["bytes"], Json::array({0x68, 0xc3, 0xa9}));
  EXPECT_EQ(token["logprob"], -0.5);
  EXPECT_EQ(token["top_logprobs"][0]["token"], "best");
}

TEST(OpenAiAnswer, BytesOfPartsOfACharacterAreTheirOwn) {
  const OpenAiRequest request = RequestFor(Endpoint::kChat, R"("logprobs": true)");
  OpenAiAnswer answer(&request, Header());
  v1::GenerateResponse chunk = WithLogprob(Chunk("\uFFFD"), -0.5);
  chunk.mutable_tokens(0)->mutable_logprobs()->mutable_token()->set_bytes("\xF0\x9F");
  answer.Add(0, Last(std::move(chunk), v1::FINISH_REASON_STOP));
  const Json token = Whole(answer)["choices"][0]["logprobs"]["content"][0];
  EXPECT_EQ(token["token"], "\uFFFD");
  EXPECT_EQ(token["bytes"], Json::array({0xF0, 0x9F}));
}

TEST(OpenAiAnswer, EchoBeginsEveryChoiceWithThePrompt) {
  const OpenAiRequest request = RequestFor(Endpoint::kCompletions, R"("echo": true, "logprobs": 1, "n": 2)");
  OpenAiAnswer answer(&request, Header());
  // "Once" with a first token "O": there is no BOS. A long prompt's tokens come in several chunks.
  v1::GenerateResponse piece;
  piece.mutable_prompt()->mutable_first()->set_text("O");
  Position(piece.add_prompt_logprobs(), "n", -3);
  answer.Add(0, piece);
  v1::GenerateResponse first = WithLogprob(Chunk(" upon"), -1);
  Position(first.add_prompt_logprobs(), "ce", -2);
  answer.Add(0, Last(std::move(first), v1::FINISH_REASON_STOP));
  answer.Add(0, Last(WithLogprob(Chunk(" more", 1), -2), v1::FINISH_REASON_STOP));
  const Json whole = Whole(answer);
  EXPECT_EQ(whole["choices"][0]["text"], "Once upon");
  EXPECT_EQ(whole["choices"][1]["text"], "Once more");
  EXPECT_EQ(whole["choices"][0]["logprobs"]["tokens"], Json::array({"O", "n", "ce", " upon"}));
  EXPECT_EQ(whole["choices"][1]["logprobs"]["tokens"], Json::array({"O", "n", "ce", " more"}));
  EXPECT_EQ(whole["choices"][1]["logprobs"]["text_offset"], Json::array({0, 1, 2, 4}));
  for (const char* list : {"token_logprobs", "top_logprobs"}) {
    EXPECT_EQ(whole["choices"][1]["logprobs"][list][0], nullptr) << "nothing comes before it";
  }
}

TEST(OpenAiAnswer, EchoOfTokensIsTheirText) {
  const OpenAiRequest request =
      RequestFor(Endpoint::kCompletions, R"("echo": true, "logprobs": 0)", "[1, 2]");
  OpenAiAnswer answer(&request, Header());
  v1::GenerateResponse chunk = WithLogprob(Chunk("!"), -1);
  chunk.mutable_prompt()->set_text("Once");
  chunk.mutable_prompt()->mutable_first()->set_text("<s>");
  Position(chunk.add_prompt_logprobs(), "Once", -3);
  answer.Add(0, Last(std::move(chunk), v1::FINISH_REASON_STOP));
  const Json choice = Whole(answer)["choices"][0];
  EXPECT_EQ(choice["text"], "Once!");
  EXPECT_EQ(choice["logprobs"]["tokens"], Json::array({"<s>", "Once", "!"}));
  EXPECT_EQ(choice["logprobs"]["text_offset"], Json::array({0, 0, 4}));
}

}  // namespace
}  // namespace outrider
