// The answer of our service in the messages of vLLM's gRPC protocol.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "outrider/v1/inference.pb.h"
#include "vllm/inference.pb.h"

namespace outrider {

// Takes the chunks of one call in their order. One thread at a time.
class VllmAnswer {
 public:
  // `request` must outlive this; `translated` is what it became, with the prompt's tokens if these are known.
  VllmAnswer(const vllm::GenerateRequest* request, const v1::GenerateRequest& translated);

  // Returns what to send, or nothing yet: what is reported of the prompt goes into the first response.
  std::optional<vllm::GenerateResponse> Take(const v1::GenerateResponse& chunk);

  // For a call that was aborted: returns the ends of the texts that have none.
  std::vector<vllm::GenerateResponse> Abort() const;

 private:
  struct Sequence {
    uint32_t tokens = 0;
    bool finished = false;
  };

  // Adds what a chunk without its tokens, or the one after, says of the prompt.
  void TakePrompt(const v1::GenerateResponse& chunk);
  void AddTokens(const v1::GenerateResponse& chunk, vllm::SequenceOutput* output) const;
  vllm::FinishInfo FinishOf(const v1::GenerateResponse& chunk) const;

  const vllm::GenerateRequest& request_;
  std::optional<vllm::PromptInfo> prompt_;  // until it is sent
  std::vector<Sequence> sequences_;
};

// Adds the next response of a text to those before: for an answer that is sent whole.
void Join(const vllm::GenerateResponse& next, vllm::GenerateResponse* whole);

}  // namespace outrider
