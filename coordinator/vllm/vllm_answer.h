// Translates the service's answer into the messages of vLLM's gRPC protocol.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "outrider/v1/inference.pb.h"
#include "vllm/inference.pb.h"

namespace outrider {

// Translates the chunks of one call, in their order. One thread at a time.
class VllmAnswer {
 public:
  // `request` must outlive this. `translated` is its translation, with the prompt's tokens if they are known.
  VllmAnswer(const vllm::GenerateRequest* request, const v1::GenerateRequest& translated);

  // Returns the response to send, or nullopt for now: the first response holds all reports on the prompt.
  std::optional<vllm::GenerateResponse> Take(const v1::GenerateResponse& chunk);

  // For a call that was aborted: returns the last responses of the sequences that have not finished.
  std::vector<vllm::GenerateResponse> Abort() const;

 private:
  struct Sequence {
    uint32_t tokens = 0;
    bool finished = false;
  };

  // Adds a chunk's reports on the prompt, which only chunks up to the first with tokens have.
  void TakePrompt(const v1::GenerateResponse& chunk);
  void AddTokens(const v1::GenerateResponse& chunk, vllm::SequenceOutput* output) const;
  vllm::FinishInfo FinishOf(const v1::GenerateResponse& chunk) const;

  const vllm::GenerateRequest& request_;
  std::optional<vllm::PromptInfo> prompt_;  // until it is sent
  std::vector<Sequence> sequences_;
};

// Appends the next response of a sequence to those before it, for an answer that is sent whole.
void Join(const vllm::GenerateResponse& next, vllm::GenerateResponse* whole);

}  // namespace outrider
