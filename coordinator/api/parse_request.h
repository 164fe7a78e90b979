// Checks what a client asks for, and fills in the defaults.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/spec/status.h"
#include "common/text/tokenizer.h"
#include "coordinator/api/chat_template.h"
#include "coordinator/generation/generation.h"
#include "outrider/v1/inference.pb.h"

namespace outrider {

// Defaults from the coordinator's flags and the files that they name.
struct RequestDefaults {
  int draft_tokens = 5;
  bool adaptive = false;  // the policy chooses K where that does not change a seed's answer
  v1::Rule rule = v1::RULE_TOKEN;
  v1::Schedule schedule = v1::SCHEDULE_AUTO;
  std::string tree = "none";                               // SpeculationOptions.tree
  v1::DrafterKind drafter = v1::DRAFTER_KIND_UNSPECIFIED;  // DefaultDrafter
  bool has_draft_service = true;
  bool has_second_draft_service = false;
  int max_samples = 1;                                          // per request
  std::shared_ptr<const ChatTemplate> chat_template = nullptr;  // null: the model is not for conversations
  std::string no_chat = "this model has no chat template";      // why there is no chat template
  v1::SamplingParams sampling = {};                             // for fields that a request does not set
  bool control_tokens_in_chat = false;  // control tokens in clients' text are read as such
};

// INVALID_ARGUMENT naming the first field that is out of range. `target` says what the model allows.
absl::StatusOr<Request> ParseRequest(const v1::GenerateRequest& proto, const RequestDefaults& defaults,
                                     const Tokenizer& tokenizer, const v1::ServerInfo& target);

// Returns the tokens of a prompt, which may be longer than the context. Errors are those of ParseRequest.
absl::StatusOr<std::vector<TokenId>> ParseTokenize(const v1::TokenizeRequest& proto,
                                                   const RequestDefaults& defaults,
                                                   const Tokenizer& tokenizer, uint32_t vocab_size);

// INVALID_ARGUMENT, naming the field, unless `value` is in [least, most].
inline absl::Status CheckRange(absl::string_view field, uint64_t value, uint64_t least, uint64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return FieldError(field, absl::StrCat(least, " to ", most), absl::StrCat(value));
}

// The parts of ParseRequest that are in parse_speculation.cc.

// The drafter of a request that names none: the configured one, else the draft service, else n-grams.
v1::DrafterKind DefaultDrafter(const RequestDefaults& defaults);

// INVALID_ARGUMENT, naming the available drafters, if the coordinator or the target lacks what the drafter
// needs. A null target counts as one with all proposers.
absl::Status CheckDrafter(v1::DrafterKind kind, const RequestDefaults& defaults,
                          const v1::ServerInfo* target);

// Fills in drafter, proposer and K. `repeatable`: a seed gives the same answer whatever K the policy chooses.
absl::Status ParseDrafter(const v1::SpeculationOptions& speculation, const RequestDefaults& defaults,
                          const v1::ServerInfo& target, bool repeatable, Request& request);

// The inputs, besides the parsed Request, that decide whether the request can have a tree.
struct TreeLimits {
  const v1::ServerInfo& target;
  const std::string& default_tree;  // the coordinator's, in the form of SpeculationOptions.tree
  bool is_greedy = false;
  bool repeatable = false;  // a seed gives the same answer whichever tree is drafted
};

// Returns what is wrong with a value of SpeculationOptions.tree; empty if nothing is.
std::string ProblemOfTree(const std::string& tree);

// Fills in the tree. `request` has drafter, K and parameters already. A shape makes the schedule lockstep,
// and its depth becomes K unless the request sets K. INVALID_ARGUMENT, naming speculation.tree or
// speculation.sibling_order, for a shape that is malformed, too large, or unusable with the request's other
// fields; "auto" and an unusable default fall back to chains instead. With K = 0 there is no tree.
absl::Status ParseTree(const v1::SpeculationOptions& speculation, const TreeLimits& limits, Request& request);

// For a beam search, fills in `beam` and adapts the other fields, which have been parsed: draft and target
// are greedy, and trees are drafted if both support them. INVALID_ARGUMENT, naming the field, for options out
// of range and for fields that a search does not allow (see GenerateRequest.beam).
absl::Status ParseBeam(const v1::GenerateRequest& proto, const RequestDefaults& defaults,
                       const v1::ServerInfo& target, Request& request);

// Reads a model's recommended temperature, top_k, top_p, min_p and repetition_penalty from the
// generation_config.json in its folder. Values that it lacks stay unset; so do all without such a file, as
// for a GGUF model. INVALID_ARGUMENT, naming the file, if it is damaged or a value is out of range.
absl::StatusOr<v1::SamplingParams> ReadSamplingDefaults(const std::string& model);

}  // namespace outrider
