// Chunks of Outrider's answers in vLLM's messages.
#include "coordinator/vllm/vllm_answer.h"

#include <gmock/gmock.h>

#include "tests/unit/vllm_testing.h"

namespace outrider {
namespace {

// The answer to a request of vLLM's protocol, and to its translation.
class Answering {
 public:
  explicit Answering(const std::string& asked, const std::string& translated = "")
      : request_(FromText<vllm::GenerateRequest>(asked)),
        answer_(&request_, FromText<v1::GenerateRequest>(translated)) {}

  // The message for a chunk, as text; "nothing" if it waits.
  std::string Take(const std::string& chunk) {
    const auto response = answer_.Take(FromText<v1::GenerateResponse>(chunk));
    return response ? response->ShortDebugString() : "nothing";
  }
  std::vector<vllm::GenerateResponse> Abort() const { return answer_.Abort(); }

 private:
  const vllm::GenerateRequest request_;
  VllmAnswer answer_;
};

std::string Normal(const std::string& response) {
  return FromText<vllm::GenerateResponse>(response).ShortDebugString();
}

TEST(VllmAnswer, TellsOfThePromptOnceAndOfTheEndAtTheEnd) {
  Answering answer("", "");
  EXPECT_EQ(answer.Take("text: 'a' tokens { id: 5 } prompt_tokens: 3"),
            Normal("prompt_info { num_prompt_tokens: 3 } outputs { text: 'a' num_tokens: 1 }"));
  EXPECT_EQ(answer.Take("text: 'b' tokens { id: 6 } finish { reason: FINISH_REASON_LENGTH usage {"
                        "  completion_tokens: 2 cached_prompt_tokens: 1 } }"),
            Normal("outputs { text: 'b' num_tokens: 1 finish_info { num_output_tokens: 2"
                   "  finish_reason: LENGTH num_cached_tokens: 1 } }"));
}

TEST(VllmAnswer, HasTheIdsThatWereAskedFor) {
  Answering answer("response { prompt_token_ids: true output_token_ids: true output_text: false }",
                   "tokens { ids: [1, 2] }");
  EXPECT_EQ(answer.Take("text: 'ab' tokens { id: 5 } tokens { id: 6 } prompt_tokens: 2"),
            Normal("prompt_info { num_prompt_tokens: 2 token_ids: [1, 2] }"
                   "outputs { num_tokens: 2 token_ids: [5, 6] }"));
}

TEST(VllmAnswer, GathersWhatIsReportedOfThePrompt) {
  Answering answer("response { prompt_logprobs: true }");
  EXPECT_EQ(answer.Take("prompt_logprobs { token { id: 2 logprob: -1 } }"), "nothing");
  EXPECT_EQ(answer.Take("tokens { id: 5 } prompt_tokens: 3 prompt_logprobs { token { id: 3 logprob: -2 }"
                        "  top { id: 9 logprob: -0.5 } top { id: 3 logprob: -2 } }"),
            Normal("prompt_info { num_prompt_tokens: 3 logprobs: [0, -1, -2] candidate_tokens {}"
                   "  candidate_tokens {} candidate_tokens { tokens { id: 9 logprob: -0.5 rank: 1 } } }"
                   "outputs { num_tokens: 1 }"));
}

TEST(VllmAnswer, AlternativesLeaveOutTheTokenItself) {
  Answering answer("response { output_logprobs: true output_candidates { top_n: 3 } }");
  EXPECT_EQ(
      answer.Take("prompt_tokens: 1 tokens { id: 5 logprobs { token { id: 5 logprob: -1 }"
                  "  top { id: 4 logprob: -0.5 } top { id: 5 logprob: -1 } top { id: 6 logprob: -2 } } }"),
      Normal("prompt_info { num_prompt_tokens: 1 } outputs { num_tokens: 1 logprobs: -1 candidate_tokens {"
             "  tokens { id: 4 logprob: -0.5 rank: 1 } tokens { id: 6 logprob: -2 rank: 3 } } }"));
}

TEST(VllmAnswer, SaysWhatStoppedIt) {
  const auto stopped_by = [](const std::string& token, const std::string& finish = "") {
    Answering answer("stopping { stop_token_ids: 8 }");
    return answer.Take("tokens { id: " + token + " } finish { reason: FINISH_REASON_STOP " + finish + "}");
  };
  EXPECT_THAT(stopped_by("8"), ::testing::HasSubstr("finish_reason: STOP stop_token_id: 8"));
  EXPECT_THAT(stopped_by("0"), ::testing::HasSubstr("finish_reason: STOP eos_token_id: 0"));
  EXPECT_THAT(stopped_by("8", "stop_string: 'x'"),
              ::testing::HasSubstr("finish_reason: STOP stop_string: \"x\""));
}

TEST(VllmAnswer, AbortEndsTheTextsThatHaveNoEnd) {
  Answering answer("", "n: 3");
  answer.Take("sample: 0 tokens { id: 5 } tokens { id: 6 }");
  answer.Take("sample: 1 tokens { id: 5 } finish { reason: FINISH_REASON_LENGTH }");
  std::vector<std::string> ends;
  for (const vllm::GenerateResponse& end : answer.Abort()) ends.push_back(end.ShortDebugString());
  EXPECT_THAT(ends, ::testing::ElementsAre(
                        Normal("outputs { finish_info { num_output_tokens: 2 finish_reason: ABORTED } }"),
                        Normal("outputs { index: 2 finish_info { finish_reason: ABORTED } }")));
}

TEST(VllmAnswer, ResponsesJoinToOne) {
  auto whole = FromText<vllm::GenerateResponse>(
      "prompt_info { num_prompt_tokens: 3 }"
      "outputs { text: 'a' num_tokens: 2 token_ids: [5, 6] }");
  Join(FromText<vllm::GenerateResponse>("outputs { text: 'b' num_tokens: 1 token_ids: 7"
                                        "  finish_info { finish_reason: STOP } }"),
       &whole);
  EXPECT_EQ(whole.ShortDebugString(),
            Normal("prompt_info { num_prompt_tokens: 3 } outputs { text: 'ab' num_tokens: 3"
                   "  token_ids: [5, 6, 7] finish_info { finish_reason: STOP } }"));
}

}  // namespace
}  // namespace outrider
