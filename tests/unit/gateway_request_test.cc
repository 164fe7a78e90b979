// Requests of the OpenAI API: what is translated, refused and ignored.
#include <gmock/gmock.h>

#include "openai_request_testing.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(OpenAiRequest, HasOpenAisDefaults) {
  const OpenAiRequest request = Completions("").value();
  EXPECT_EQ(request.common.stop().max_tokens(), 16u);
  EXPECT_EQ(request.prompts[0].text(), "Once");
  EXPECT_FALSE(request.common.sampling().has_temperature());
  EXPECT_FALSE(request.common.has_seed());
  EXPECT_FALSE(request.stream || request.logprobs() || request.echo);
  EXPECT_EQ(request.samples(), 1u);
  EXPECT_FALSE(Chat("").value().common.stop().has_max_tokens());
}

TEST(OpenAiRequest, TranslatesEveryControl) {
  const OpenAiRequest request = Completions(R"(
      "model": "m", "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "presence_penalty": 1,
      "frequency_penalty": -1, "repetition_penalty": 1.5, "logit_bias": {"5": -100, "6": 2.5},
      "allowed_token_ids": [3, 4], "min_tokens": 2, "max_tokens": 9, "stop": ["a", "b"], "stop_token_ids": [8],
      "ignore_eos": true, "seed": 11, "n": 3, "logprobs": 2, "draft_tokens": 0, "drafter": "ngram",
      "rule": "coupled", "stream": true, "stream_options": {"include_usage": true})")
                                    .value();
  const v1::SamplingParams& sampling = request.common.sampling();
  EXPECT_EQ(request.model, "m");
  EXPECT_FLOAT_EQ(sampling.temperature(), 0.5);
  EXPECT_FLOAT_EQ(sampling.top_p(), 0.9f);
  EXPECT_EQ(sampling.top_k(), 7u);
  EXPECT_FLOAT_EQ(sampling.min_p(), 0.1f);
  EXPECT_FLOAT_EQ(sampling.presence_penalty(), 1);
  EXPECT_FLOAT_EQ(sampling.frequency_penalty(), -1);
  EXPECT_FLOAT_EQ(sampling.repetition_penalty(), 1.5);
  ASSERT_EQ(sampling.logit_bias_size(), 2);
  EXPECT_EQ(sampling.logit_bias(1).token(), 6u);
  EXPECT_FLOAT_EQ(sampling.logit_bias(1).bias(), 2.5);
  EXPECT_THAT(sampling.allowed_ids(), ElementsAre(3, 4));
  EXPECT_EQ(sampling.min_tokens(), 2u);
  const v1::StopOptions& stop = request.common.stop();
  EXPECT_EQ(stop.max_tokens(), 9u);
  EXPECT_THAT(stop.strings(), ElementsAre("a", "b"));
  EXPECT_THAT(stop.token_ids(), ElementsAre(8));
  EXPECT_TRUE(stop.ignore_eos());
  EXPECT_EQ(request.common.seed(), 11u);
  EXPECT_EQ(request.samples(), 3u);
  EXPECT_EQ(request.common.logprobs().top(), 2u);
  EXPECT_TRUE(request.common.logprobs().before_controls());
  const v1::SpeculationOptions& speculation = request.common.speculation();
  EXPECT_TRUE(speculation.has_draft_tokens());
  EXPECT_EQ(speculation.drafter(), v1::DRAFTER_KIND_NGRAM);
  EXPECT_EQ(speculation.rule(), v1::RULE_COUPLED);
  EXPECT_TRUE(request.stream && request.include_usage);
}

TEST(OpenAiRequest, TakesPromptsInEachForm) {
  const auto prompts = [](const std::string& prompt) {
    return ParseOpenAiRequest(Endpoint::kCompletions, R"({"prompt": )" + prompt + "}").value().prompts;
  };
  EXPECT_EQ(prompts(R"("one")")[0].text(), "one");
  EXPECT_EQ(prompts(R"(["one", "two"])")[1].text(), "two");
  EXPECT_THAT(prompts("[1, 2, 3]")[0].tokens().ids(), ElementsAre(1, 2, 3));
  EXPECT_THAT(prompts("[[1], [2, 3]]")[1].tokens().ids(), ElementsAre(2, 3));
  // An empty list is left to the service to refuse.
  EXPECT_THAT(prompts("[]")[0].tokens().ids(), IsEmpty());
}

TEST(OpenAiRequest, TakesMessagesWithTextOrParts) {
  const OpenAiRequest request =
      ParseOpenAiRequest(Endpoint::kChat, R"({"max_tokens": 5, "max_completion_tokens": 6,
          "logprobs": true, "top_logprobs": 2, "messages": [{"role": "system", "content": "Be brief."},
          {"role": "user", "name": "Ada", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
          {"role": "assistant", "content": "Three.", "reasoning_content": "After two."}]})")
          .value();
  const v1::ChatPrompt& chat = request.prompts[0].chat();
  ASSERT_EQ(chat.messages_size(), 3);
  EXPECT_EQ(chat.messages(0).role(), "system");
  EXPECT_EQ(chat.messages(0).content(), "Be brief.");
  EXPECT_THAT(chat.messages(1).parts(), ElementsAre("one", "two"));
  EXPECT_EQ(chat.messages(1).fields(), R"({"name":"Ada"})") << "what the template may read reaches it";
  EXPECT_EQ(chat.messages(2).fields(), R"({"reasoning_content":"After two."})");
  EXPECT_EQ(request.common.stop().max_tokens(), 6u);
  EXPECT_EQ(request.common.logprobs().top(), 2u);
}

TEST(OpenAiRequest, TakesNoFieldOfAPartThatNobodyReads) {
  const auto talk = [](const std::string& part) {
    return ParseOpenAiRequest(Endpoint::kChat,
                              R"({"messages": [{"role": "user", "content": [)" + part + "]}]}");
  };
  EXPECT_TRUE(talk(R"({"type": "text", "text": "", "annotations": null})").ok());
  EXPECT_EQ(ErrorOf(talk(R"({"type": "text", "text": "", "cache_control": {"type": "ephemeral"}})"))["param"],
            "messages");
}

TEST(OpenAiRequest, TakesATurnOfTheAssistantWithoutText) {
  const auto talk = [](const std::string& turn) {
    return ParseOpenAiRequest(Endpoint::kChat,
                              R"({"messages": [{"role": "user", "content": "hi"}, )" + turn + "]}");
  };
  for (const char* turn : {R"({"role": "assistant", "content": null})", R"({"role": "assistant"})"}) {
    EXPECT_EQ(talk(turn)->prompts[0].chat().messages(1).content(), "") << turn;
  }
  EXPECT_EQ(ErrorOf(talk(R"({"role": "user", "content": null})"))["param"], "messages");
}

TEST(OpenAiRequest, TakesWhatTheTemplateReads) {
  const OpenAiRequest request =
      Chat(R"("chat_template_kwargs": {"enable_thinking": false}, "continue_final_message": true)").value();
  EXPECT_EQ(request.prompts[0].chat().chat_template_kwargs(), R"({"enable_thinking":false})");
  EXPECT_TRUE(request.prompts[0].chat().continue_final_message());
  EXPECT_TRUE(Chat(R"("continue_final_message": true, "add_generation_prompt": false)").ok());
  EXPECT_TRUE(Chat(R"("add_generation_prompt": true)").ok());
  for (const std::string field : {R"("continue_final_message": true, "add_generation_prompt": true)",
                                  R"("add_generation_prompt": false)"}) {
    EXPECT_EQ(ErrorOf(Chat(field), Endpoint::kChat)["param"], "add_generation_prompt") << field;
  }
  EXPECT_EQ(ErrorOf(Chat(R"("chat_template_kwargs": [1])"), Endpoint::kChat)["param"],
            "chat_template_kwargs");
}

TEST(OpenAiRequest, TakesAPredictionInEachForm) {
  const auto prediction = [](const std::string& content) {
    return Chat(R"("prediction": {"type": "content", "content": )" + content + "}");
  };
  EXPECT_EQ(prediction(R"("a text")")->common.prediction(), "a text");
  EXPECT_EQ(
      prediction(R"([{"type": "text", "text": "a "}, {"type": "text", "text": "b"}])")->common.prediction(),
      "a b");
  EXPECT_EQ(Chat(R"("prediction": null)")->common.prediction(), "");
  for (const char* wrong : {R"("a text")", R"({"type": "other", "content": "a"})", R"({"type": "content"})",
                            R"({"type": "content", "content": [{"type": "image_url"}]})"}) {
    EXPECT_EQ(ErrorOf(Chat(std::string(R"("prediction": )") + wrong))["param"], "prediction") << wrong;
  }
}

TEST(OpenAiRequest, NullIsAbsentAndUnknownFieldsAreIgnored) {
  const OpenAiRequest request =
      Completions(R"("temperature": null, "stop": null, "max_tokens": null, "tools": null,
      "user": "ada", "metadata": {"a": {"b": []}}, "store": true, "some_day": [1, "x"])")
          .value();
  EXPECT_FALSE(request.common.sampling().has_temperature());
  EXPECT_EQ(request.common.stop().max_tokens(), 16u);
  EXPECT_EQ(Completions(R"("top_k": -1)").value().common.sampling().top_k(), 0u);
  EXPECT_EQ(Completions(R"("seed": -1)").value().common.seed(), ~uint64_t{0});
  EXPECT_EQ(Completions(R"("stop": "x")").value().common.stop().strings_size(), 1);
}

TEST(OpenAiRequest, RefusesWhatItCannotDoByName) {
  for (const std::string field :
       {R"("suffix": "end")", R"("guided_whitespace_pattern": " ")", R"("prompt_logprobs": 0)",
        R"("skip_special_tokens": false)", R"("include_stop_str_in_output": true)",
        R"("truncate_prompt_tokens": 5)", R"("add_special_tokens": false)"}) {
    const Json error = ErrorOf(Completions(field));
    EXPECT_EQ(error["code"], "unsupported_parameter") << field;
    EXPECT_EQ(error["type"], "invalid_request_error");
    EXPECT_THAT(field, HasSubstr(error["param"].get<std::string>()));
  }
  for (const std::string field :
       {R"("reasoning_effort": "low")", R"("functions": [{}])", R"("modalities": ["text", "audio"])",
        R"("audio": {"voice": "a"})", R"("echo": true)", R"("chat_template": "{{ x }}")"}) {
    EXPECT_EQ(ErrorOf(Chat(field), Endpoint::kChat)["code"], "unsupported_parameter") << field;
  }
}

TEST(OpenAiRequest, SearchesForAsManyTextsAsItReturns) {
  const v1::GenerateRequest all =
      Completions(R"("use_beam_search": true, "n": 4, "length_penalty": 0.5)").value().common;
  EXPECT_EQ(all.beam().width(), 4u);
  EXPECT_EQ(all.n(), 4u);
  EXPECT_EQ(all.beam().length_penalty(), 0.5);
  const v1::GenerateRequest best = Completions(R"("use_beam_search": true, "best_of": 5)").value().common;
  EXPECT_EQ(best.beam().width(), 5u);
  EXPECT_FALSE(best.has_n());
  EXPECT_FALSE(Completions(R"("use_beam_search": false, "length_penalty": 0.5)").value().common.has_beam());
}

TEST(OpenAiRequest, AnUnsupportedFieldThatAsksForNothingIsFine) {
  EXPECT_TRUE(Completions(R"("suffix": "", "response_format": {"type": "text"}, "guided_json": null,
                            "skip_special_tokens": true, "use_beam_search": false, "best_of": 1)")
                  .ok());
  EXPECT_TRUE(
      Chat(R"("tools": [], "tool_choice": "none", "modalities": ["text"], "add_generation_prompt": true)")
          .ok());
}

TEST(OpenAiRequest, NamesAFieldOfTheWrongKind) {
  struct Case {
    std::string body, field;
  };
  for (const Case& c : std::vector<Case>{
           {R"("temperature": "hot")", "temperature"},
           {R"("max_tokens": 2.5)", "max_tokens"},
           {R"("max_tokens": -1)", "max_tokens"},
           {R"("n": "two")", "n"},
           {R"("seed": 1.5)", "seed"},
           {R"("stream": "yes")", "stream"},
           {R"("stop": 5)", "stop"},
           {R"("stop": ["a", 5])", "stop"},
           {R"("stop_token_ids": ["a"])", "stop_token_ids"},
           {R"("logit_bias": [1])", "logit_bias"},
           {R"("logit_bias": {"word": 1})", "logit_bias"},
           {R"("logit_bias": {"5": "much"})", "logit_bias"},
           {R"("best_of": 3)", "best_of"},
           {R"("use_beam_search": "yes")", "use_beam_search"},
           {R"("use_beam_search": true, "length_penalty": "long")", "length_penalty"},
           {R"("drafter": "oracle")", "drafter"},
           {R"("rule": "luck")", "rule"},
           {R"("stream_options": {"include_usage": true})", "stream_options"},
           {R"("stream": true, "stream_options": {"include_usage": 1})", "include_usage"},
           {R"("logprobs": true)", "logprobs"},
           {R"("model": 5)", "model"},
       }) {
    const Json error = ErrorOf(Completions(c.body));
    EXPECT_EQ(error["param"], c.field) << c.body;
    EXPECT_EQ(error["code"], "invalid_value");
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("allowed: "));
  }
}

TEST(OpenAiRequest, NamesAPromptThatIsNone) {
  for (const std::string body :
       {"{}", R"({"prompt": null})", R"({"prompt": 5})", R"({"prompt": [1, -2]})", R"({"prompt": [1.5]})",
        R"({"prompt": ["a", 5]})", R"({"prompt": {"text": "a"}})"}) {
    EXPECT_EQ(ErrorOf(ParseOpenAiRequest(Endpoint::kCompletions, body))["param"], "prompt") << body;
  }
  for (const std::string messages :
       {"null", R"("hi")", R"(["hi"])", R"([{"content": "hi"}])", R"([{"role": "user"}])",
        R"([{"role": "user", "content": 5}])", R"([{"role": "user", "content": null}])",
        R"([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])",
        R"([{"role": "assistant", "content": "", "tool_calls": [{}]}])"}) {
    const auto request = ParseOpenAiRequest(Endpoint::kChat, R"({"messages": )" + messages + "}");
    EXPECT_EQ(ErrorOf(request, Endpoint::kChat)["param"], "messages") << messages;
  }
}

TEST(OpenAiRequest, SurvivesWhatIsNoJson) {
  const std::string deep = std::string(1 << 20, '[');
  for (const std::string& body : std::vector<std::string>{"", "{", "[]", "\"text\"", "{\"prompt\": \"\xff\"}",
                                                          deep, R"({"prompt": )" + deep}) {
    EXPECT_EQ(ErrorOf(ParseOpenAiRequest(Endpoint::kCompletions, body))["code"], "invalid_json");
  }
}

TEST(OpenAiRequest, EchoIsForTextAndBringsThePromptsProbabilities) {
  const OpenAiRequest request = Completions(R"("echo": true, "logprobs": 1)").value();
  EXPECT_TRUE(request.echo);
  EXPECT_EQ(request.common.logprobs().prompt(), 1u);
  EXPECT_TRUE(ParseOpenAiRequest(Endpoint::kCompletions, R"({"prompt": [1], "echo": true})")->common.echo());
  EXPECT_EQ(ErrorOf(Chat(R"("top_logprobs": 2)"), Endpoint::kChat)["param"], "top_logprobs");
}

TEST(OpenAiError, SaysAServicesErrorInOpenAisNames) {
  const auto param = [](const std::string& field, Endpoint endpoint) {
    const HttpError error = ToHttpError(FieldError(field, "something else", "this"), endpoint);
    const Json object = Json::parse(error.body)["error"];
    EXPECT_EQ(object["message"], object["param"].get<std::string>() + ": this; allowed: something else");
    return object["param"].get<std::string>();
  };
  EXPECT_EQ(param("sampling.temperature", Endpoint::kCompletions), "temperature");
  EXPECT_EQ(param("stop.strings", Endpoint::kCompletions), "stop");
  EXPECT_EQ(param("stop.max_tokens", Endpoint::kCompletions), "max_tokens");
  EXPECT_EQ(param("speculation.draft_tokens", Endpoint::kCompletions), "draft_tokens");
  EXPECT_EQ(param("tokens.ids", Endpoint::kCompletions), "prompt");
  EXPECT_EQ(param("prompt", Endpoint::kChat), "messages");
  EXPECT_EQ(param("chat", Endpoint::kChat), "messages");
  EXPECT_EQ(param("logprobs.top", Endpoint::kChat), "top_logprobs");
  EXPECT_EQ(param("n", Endpoint::kChat), "n");
}

TEST(OpenAiError, HasTheStatusThatClientsActOn) {
  struct Case {
    absl::Status status;
    int http;
    std::string type, code;
  };
  for (const Case& c : std::vector<Case>{
           {MakeError(absl::StatusCode::kUnauthenticated, "UNAUTHENTICATED", "who?"), 401,
            "invalid_request_error", "invalid_api_key"},
           {MakeError(absl::StatusCode::kNotFound, "MODEL_NOT_FOUND", "no"), 404, "invalid_request_error",
            "model_not_found"},
           {MakeError(absl::StatusCode::kUnavailable, "DRAINING", "bye"), 503, "service_unavailable_error",
            "draining"},
           {absl::DeadlineExceededError("too late"), 504, "timeout_error", "deadline_exceeded"},
           {absl::InternalError("Oh"), 500, "server_error", "internal"},
       }) {
    const HttpError error = ToHttpError(c.status, Endpoint::kChat);
    const Json object = Json::parse(error.body)["error"];
    EXPECT_EQ(error.status, c.http);
    EXPECT_EQ(object["type"], c.type);
    EXPECT_EQ(object["code"], c.code);
    EXPECT_TRUE(object["param"].is_null());
    EXPECT_EQ(error.retry_after_seconds, 0);
  }
  const HttpError busy =
      ToHttpError(BusyError("QUEUE_FULL", "full", absl::Milliseconds(200)), Endpoint::kChat);
  EXPECT_EQ(busy.status, 429);
  EXPECT_EQ(busy.retry_after_seconds, 1);
}

TEST(ParseOpenAiRequest, TakesNoRequestWhoseAnswerCannotBeHeld) {
  const std::string most = R"("n": 128, "max_tokens": 6241, "logprobs": 20)";  // 2^24 is 128 x 6241.5 x 21
  EXPECT_TRUE(Completions(most).ok());
  const std::string more = R"("n": 128, "max_tokens": 6242, "logprobs": 20)";
  EXPECT_EQ(ErrorOf(Completions(more))["code"], "answer_too_large");
  EXPECT_TRUE(Completions(more + R"(, "stream": true)").ok());
  EXPECT_EQ(ErrorOf(Completions(R"("n": 4294967295, "max_tokens": 4294967295)"))["code"], "answer_too_large");
}

TEST(ParseOpenAiRequest, DropsNothingThatNestsDeep) {
  const auto nested = [](int depth) {
    const std::string value =
        std::string(static_cast<size_t>(depth), '[') + std::string(static_cast<size_t>(depth), ']');
    return ParseOpenAiRequest(Endpoint::kChat, R"({"messages": [{"role": "user", "content": "a"}],)"
                                               R"("chat_template_kwargs": {"a": )" +
                                                   value + "}}");
  };
  const absl::StatusOr<OpenAiRequest> deep = nested(62);
  ASSERT_TRUE(deep.ok()) << deep.status();
  EXPECT_THAT(deep->prompts.front().chat().chat_template_kwargs(), HasSubstr(std::string(62, '[')));
  EXPECT_EQ(nested(63).status().message(), "the body nests more than 64 deep");
}

TEST(ParseOpenAiRequest, TakesNoBodyThatIsManyTimesLargerInMemory) {
  std::string stops, numbers = "1";
  for (int i = 0; i < 70'000; ++i) {
    stops += R"("",)";
    numbers += ",1";
  }
  const auto reason = [](const std::string& field) {
    return ReasonOf(ParseOpenAiRequest(Endpoint::kCompletions, R"({"prompt": "a", )" + field + "}").status());
  };
  EXPECT_EQ(reason(R"("stop": [)" + stops + R"(""])"), "INVALID_JSON");
  EXPECT_EQ(reason(R"("metadata": {"a": [)" + stops + R"(""]})"), "INVALID_JSON")
      << "nor where it is ignored";
  EXPECT_TRUE(ParseOpenAiRequest(Endpoint::kCompletions, R"({"prompt": [)" + numbers + "]}").ok())
      << "numbers take their place alone";
}

}  // namespace
}  // namespace outrider
