// A request that has been checked, with every default filled in.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/spec/types.h"
#include "common/text/stop_matcher.h"
#include "common/text/tokenizer.h"
#include "coordinator/api/chat_template.h"
#include "outrider/v1/inference.pb.h"

namespace outrider {

// What the coordinator's flags, and the files they name, say about requests.
struct RequestDefaults {
  int draft_tokens = 5;
  bool adaptive = false;  // the policy chooses K where that leaves a seed's answer as it is
  v1::Rule rule = v1::RULE_TOKEN;
  v1::DrafterKind drafter = v1::DRAFTER_KIND_UNSPECIFIED;  // the model if there is a draft service, else none
  bool has_draft_service = true;
  bool has_corpus = false;                                      // for the drafters that count one
  int max_samples = 1;                                          // of one request
  std::shared_ptr<const ChatTemplate> chat_template = nullptr;  // null: the model is not for conversations
};

// Who drafts for a request that does not say so.
v1::DrafterKind DefaultDrafter(const RequestDefaults& defaults);

// INVALID_ARGUMENT, naming those that can be had, if the coordinator lacks what the drafter needs.
absl::Status CheckDrafter(v1::DrafterKind kind, const RequestDefaults& defaults);

struct Request {
  std::vector<TokenId> prompt;  // at least one; leaves room for one more in the context
  std::vector<TokenId> resumed;
  v1::SequenceParams params;
  v1::DrafterKind drafter = v1::DRAFTER_KIND_MODEL;
  int draft_tokens = 0;   // K
  bool adaptive = false;  // that is only the largest K; the policy chooses
  std::vector<std::string> stop_strings;
  std::vector<TokenId> end_ids;  // each ends the generation; without the model's own if those are ignored
  int max_tokens = 0;            // cut to the context
  bool trace = false;
  int prompt_logprobs = -1;  // alternatives to report with each prompt token; -1: none
  v1::RequestContext context;
  int samples = 1;  // with sample indices from that of `params` on
};

// INVALID_ARGUMENT naming the first field that is out of range, and the range. `target` says what the model
// allows, the largest K included.
absl::StatusOr<Request> ParseRequest(const v1::GenerateRequest& proto, const RequestDefaults& defaults,
                                     const Tokenizer& tokenizer, const v1::ServerInfo& target);

}  // namespace outrider
