// Checks what a client asks for, and fills in the defaults.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/text/tokenizer.h"
#include "coordinator/api/chat_template.h"
#include "coordinator/generation/generation.h"
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

// --- parts of it ---

// Who drafts for a request that does not say so: without a draft service n-grams, which need nothing.
v1::DrafterKind DefaultDrafter(const RequestDefaults& defaults);

// INVALID_ARGUMENT, naming those that can be had, if the coordinator or the target lacks what the drafter
// needs. Without a target, null, whatever a target can have passes.
absl::Status CheckDrafter(v1::DrafterKind kind, const RequestDefaults& defaults,
                          const v1::ServerInfo* target);

// Fills in the drafter, the target's proposer and K. `repeatable`: a K that the policy chooses does not
// change what a seed gives.
absl::Status ParseDrafter(const v1::SpeculationOptions& speculation, const RequestDefaults& defaults,
                          const v1::ServerInfo& target, bool repeatable, Request& request);

// What beside the request decides whether there can be a tree.
struct TreeLimits {
  const v1::ServerInfo& target;
  const std::string& default_tree;  // of the coordinator, as SpeculationOptions.tree
  bool is_greedy = false;
  bool repeatable = false;  // which tree is drafted does not change what a seed gives
};

// What is wrong with a value of SpeculationOptions.tree; empty: nothing.
std::string ProblemOfTree(const std::string& tree);

// Fills in what is drafted. `request` has drafter, K and parameters already; a shape makes the schedule
// lockstep, and says how deep K is where the request does not. INVALID_ARGUMENT, naming speculation.tree or
// speculation.sibling_order, for a shape that is none, is too large, or cannot be used with the rest of the
// request. What comes from the default, and "auto", gives chains instead. K = 0 ignores a tree.
absl::Status ParseTree(const v1::SpeculationOptions& speculation, const TreeLimits& limits, Request& request);

// If there is a search, fills in `beam`, and what it makes of the rest of the request, which has been parsed:
// draft and target are greedy, and what is drafted are trees where both can. INVALID_ARGUMENT, naming the
// field, for options out of range and for what goes with no search (GenerateRequest.beam).
absl::Status ParseBeam(const v1::GenerateRequest& proto, const RequestDefaults& defaults,
                       const v1::ServerInfo& target, Request& request);

// How a model is meant to be sampled from, by its own account: temperature, top_k, top_p, min_p and
// repetition_penalty of the generation_config.json in a model's folder, as far as it has them; none without
// the file. INVALID_ARGUMENT, naming the file, if it is damaged or a value is out of range.
absl::StatusOr<v1::SamplingParams> ReadSamplingDefaults(const std::string& folder);

// Takes from `defaults` what is not set.
void FillIn(const v1::SamplingParams& defaults, v1::SamplingParams* sampling);

}  // namespace outrider
