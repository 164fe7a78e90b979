// A request that has been checked, with every default filled in.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/spec/tree_shape.h"
#include "common/spec/types.h"
#include "outrider/v1/inference.pb.h"

namespace outrider {

struct Request {
  std::vector<TokenId> prompt;  // at least one; leaves room for one more in the context
  std::vector<TokenId> resumed;
  v1::SequenceParams params;
  v1::DrafterKind drafter = v1::DRAFTER_KIND_MODEL;
  int draft_tokens = 0;           // K
  bool adaptive = false;          // that is only the largest K; the policy chooses
  std::optional<TreeShape> tree;  // what is drafted; unset: chains, unless
  bool chooses_tree = false;      // the policy chooses between them and trees
  int max_tree_nodes = 0;         // that it may choose
  v1::Schedule schedule = v1::SCHEDULE_LOCKSTEP;
  // While running ahead, the token after an accepted proposal is coupled with what the draft drew for it.
  // Only where that changes no answer of a seed, and something is drawn at all.
  bool couples_bonus = false;
  std::vector<std::string> stop_strings;
  std::vector<TokenId> end_ids;  // each ends the generation; without the model's own if those are ignored
  int max_tokens = 0;            // cut to the context
  bool trace = false;
  bool echo = false;
  int prompt_logprobs = -1;  // alternatives to report with each prompt token; -1: none
  v1::RequestContext context;
  int samples = 1;  // with sample indices from that of `params` on
  // Set: nothing is sampled, the likeliest texts are searched for. With every default filled in; `samples` is
  // how many of them are wanted.
  std::optional<v1::BeamOptions> beam;
  int candidates = 0;  // for that: how many likeliest tokens the target reports instead of a verdict
};

}  // namespace outrider
