// Checks what a client asks for, and fills in the defaults.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/text/tokenizer.h"
#include "coordinator/api/chat_template.h"
#include "coordinator/rounds/request.h"
#include "outrider/v1/inference.pb.h"

namespace outrider {

// What the coordinator's flags, and the files they name, say about requests.
struct RequestDefaults {
  int draft_tokens = 5;
  bool adaptive = false;  // the policy chooses K where that leaves a seed's answer as it is
  v1::Rule rule = v1::RULE_TOKEN;
  v1::Schedule schedule = v1::SCHEDULE_AUTO;
  std::string tree = "none";                               // SpeculationOptions.tree
  v1::DrafterKind drafter = v1::DRAFTER_KIND_UNSPECIFIED;  // DefaultDrafter
  bool has_draft_service = true;
  bool has_corpus = false;                                      // for the drafters that count one
  int max_samples = 1;                                          // of one request
  std::shared_ptr<const ChatTemplate> chat_template = nullptr;  // null: the model is not for conversations
  std::string no_chat = "this model has no chat template";      // why then
  v1::SamplingParams sampling = {};                             // for what a request does not set
  bool control_tokens_in_chat = false;                          // also where clients wrote them
};

// INVALID_ARGUMENT naming the first field that is out of range, and the range. `target` says what the model
// allows, the largest K included.
absl::StatusOr<Request> ParseRequest(const v1::GenerateRequest& proto, const RequestDefaults& defaults,
                                     const Tokenizer& tokenizer, const v1::ServerInfo& target);

}  // namespace outrider
