#include "coordinator/api/parse_request.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/rpc/drafters.h"
#include "common/spec/tree_shape.h"
#include "coordinator/decode/beam_search.h"

namespace outrider {
namespace {

constexpr int kAdaptiveTreeDepth = 4;  // of a tree whose shape gives no depth, when the policy chooses K

bool IsConfigured(v1::DrafterKind kind, const RequestDefaults& defaults, const v1::ServerInfo* target) {
  if (kind == v1::DRAFTER_KIND_MODEL) return defaults.has_draft_service;
  if (kind == v1::DRAFTER_KIND_BOTH_MODELS) return defaults.has_second_draft_service;
  if (kind == v1::DRAFTER_KIND_NGRAM || kind == v1::DRAFTER_KIND_COPY || kind == v1::DRAFTER_KIND_AUTO ||
      kind == v1::DRAFTER_KIND_NONE || kind == v1::DRAFTER_KIND_GRAMMAR) {
    return true;
  }
  const v1::Proposer proposer = ProposerOf(kind);
  return proposer != v1::PROPOSER_UNSPECIFIED &&
         (target == nullptr || FindProposer(*target, proposer) != nullptr);
}

std::string ProblemWith(v1::DrafterKind kind, const v1::ServerInfo* target) {
  const std::string name = NameOf(kind);
  if (kind == v1::DRAFTER_KIND_MODEL) return "model; no draft service is configured";
  if (kind == v1::DRAFTER_KIND_BOTH_MODELS) return "both_models; no second draft service is configured";
  if (target == nullptr || ProposerOf(kind) == v1::PROPOSER_UNSPECIFIED) {
    return absl::StrCat("unknown value ", name);
  }
  std::vector<std::string> proposers;
  for (const v1::ProposerInfo& each : target->proposers()) proposers.push_back(NameOf(each.proposer()));
  return absl::StrCat(
      name, "; proposers of the target: ", proposers.empty() ? "none" : absl::StrJoin(proposers, ", "));
}

// Why no drafter's tokens can compete for a position in this request; nullopt if they can.
std::optional<std::string> ObstacleToBranches(const TreeLimits& limits, const Request& request) {
  const v1::SequenceParams& params = request.params;
  if (params.rule() == v1::RULE_BLOCK) return "rule block";
  if (params.has_lenience() && params.lenience() < 1) return "lenience below 1";
  if (limits.target.max_tree_nodes() == 0) return "a target that takes none";
  const bool exact_bits = limits.is_greedy || params.rule() == v1::RULE_COUPLED;
  if (exact_bits && !limits.target.tree_row_invariant() && !limits.target.inexact_trees()) {
    return "a target that rounds trees otherwise than chains, under greedy decoding or rule coupled";
  }
  return std::nullopt;
}

// Why the request cannot have a tree of any shape; nullopt if it can.
std::optional<std::string> Obstacle(const TreeLimits& limits, const Request& request) {
  const bool makes_trees =
      request.drafter == v1::DRAFTER_KIND_MODEL || ProposerOf(request.drafter) != v1::PROPOSER_UNSPECIFIED;
  if (!makes_trees) return absl::StrCat("drafter ", NameOf(request.drafter));
  return ObstacleToBranches(limits, request);
}

// The chains of two drafts must fit a tree's limits together.
absl::Status FitBothModels(const v1::SpeculationOptions& speculation, const TreeLimits& limits,
                           Request& request) {
  if (request.drafter != v1::DRAFTER_KIND_BOTH_MODELS || request.draft_tokens == 0) return absl::OkStatus();
  const std::optional<std::string> obstacle = ObstacleToBranches(limits, request);
  if (obstacle && speculation.drafter() == request.drafter) {
    return FieldError("speculation.drafter", absl::StrCat("another with ", *obstacle),
                      NameOf(request.drafter));
  }
  if (obstacle) {
    request.drafter = v1::DRAFTER_KIND_MODEL;
  } else {
    request.draft_tokens =
        std::min(request.draft_tokens, static_cast<int>(limits.target.max_tree_nodes()) / 2);
  }
  return absl::OkStatus();
}

int DepthOf(const v1::SpeculationOptions& speculation, const TreeShape& shape, int max_draft_tokens,
            const Request& request) {
  if (speculation.has_draft_tokens()) return request.draft_tokens;
  const auto* branching = std::get_if<Branching>(&shape);
  const int depth = branching != nullptr ? static_cast<int>(branching->children.size())
                    : request.adaptive   ? kAdaptiveTreeDepth
                                         : request.draft_tokens;
  return std::min(depth, max_draft_tokens);
}

// A random order is exact for siblings that were drawn independently, and for those taken without a draw.
absl::Status ParseOrder(const v1::SpeculationOptions& speculation, const TreeLimits& limits,
                        Request& request) {
  if (!v1::SiblingOrder_IsValid(speculation.sibling_order())) {
    return FieldError("speculation.sibling_order", "given, random",
                      absl::StrCat("unknown value ", static_cast<int>(speculation.sibling_order())));
  }
  if (speculation.sibling_order() != v1::SIBLING_ORDER_RANDOM) return absl::OkStatus();
  v1::SequenceParams& params = request.params;
  if (params.rule() != v1::RULE_TOKEN) {
    return FieldError("speculation.sibling_order", absl::StrCat("given with rule ", NameOf(params.rule())),
                      "random");
  }
  const v1::ProposerInfo* own = FindProposer(limits.target, params.proposer());
  const bool takes = own != nullptr && own->greedy();
  const bool draws = params.has_draft_temperature() ? params.draft_temperature() > 0 : !limits.is_greedy;
  const bool without_replacement =
      request.chooses_tree || (request.tree && DrawsWithoutReplacement(*request.tree));
  if (draws && !takes && without_replacement) {
    return FieldError("speculation.sibling_order",
                      "given where siblings are drawn without replacement, as in all shapes but chains:N",
                      "random");
  }
  params.set_sibling_order(v1::SIBLING_ORDER_RANDOM);
  return absl::OkStatus();
}

// The most candidates that the target returns per row; see VerifyItem.candidates.
constexpr int kMaxCandidates = 256;
constexpr uint32_t kMaxDraftWidth = 256;
constexpr double kMaxLengthPenalty = 10;
// The draft's default depth, and its default width as a multiple of the search's. On the shipped pair they
// yield 1.9 to 2.5 tokens per target call for widths of 8 to 2; greater depths yield little more.
constexpr int kBeamDepth = 2;
constexpr uint32_t kWiderDraft = 3;

absl::Status CheckOptions(const v1::BeamOptions& beam, uint32_t max_width) {
  OUTRIDER_TRY(CheckRange("beam.width", beam.width(), 1, max_width));
  if (beam.has_draft_width()) {
    OUTRIDER_TRY(CheckRange("beam.draft_width", beam.draft_width(), beam.width(), kMaxDraftWidth));
  }
  if (!(std::abs(beam.length_penalty()) <= kMaxLengthPenalty)) {
    return FieldError("beam.length_penalty",
                      absl::StrCat("[-", kMaxLengthPenalty, ", ", kMaxLengthPenalty, "]"),
                      absl::StrCat(beam.length_penalty()));
  }
  if (!v1::BeamStop_IsValid(beam.stop())) {
    return FieldError("beam.stop", "auto, first, never",
                      absl::StrCat("unknown value ", static_cast<int>(beam.stop())));
  }
  return absl::OkStatus();
}

// With candidates the target cannot propose, and one draft makes the tree. If the default would be the target
// or two drafts, the draft service or none takes its place.
absl::Status ReplaceDrafter(const v1::SpeculationOptions& speculation, const RequestDefaults& defaults,
                            Request& request) {
  request.params.clear_proposer();
  const bool both = request.drafter == v1::DRAFTER_KIND_BOTH_MODELS;
  if (!both && ProposerOf(request.drafter) == v1::PROPOSER_UNSPECIFIED) return absl::OkStatus();
  if (speculation.drafter() == request.drafter) {
    return FieldError(
        "speculation.drafter",
        both ? "one model with beam search" : "one that is not the target itself with beam search",
        NameOf(request.drafter));
  }
  request.drafter = defaults.has_draft_service ? v1::DRAFTER_KIND_MODEL : v1::DRAFTER_KIND_NONE;
  if (!defaults.has_draft_service) request.draft_tokens = 0;
  return absl::OkStatus();
}

// A search ranks texts by the model's own probabilities, so sampling controls must not change these.
absl::Status CheckSampling(v1::SamplingParams sampling) {
  const float temperature = sampling.temperature();
  if (temperature != 0 && temperature != 1) {
    return FieldError("sampling.temperature", "0 or 1 with beam search", absl::StrCat(temperature));
  }
  // A field may be set to the value that changes nothing.
  sampling.clear_temperature();
  if (sampling.top_k() == 0) sampling.clear_top_k();
  if (sampling.top_p() == 1) sampling.clear_top_p();
  if (sampling.min_p() == 0) sampling.clear_min_p();
  if (sampling.repetition_penalty() == 1) sampling.clear_repetition_penalty();
  std::vector<const google::protobuf::FieldDescriptor*> set;
  sampling.GetReflection()->ListFields(sampling, &set);
  if (set.empty()) return absl::OkStatus();
  return FieldError(absl::StrCat("sampling.", set[0]->name()), "unset with beam search", "set");
}

absl::Status CheckFieldsForBeam(const v1::GenerateRequest& proto) {
  const v1::SpeculationOptions& speculation = proto.speculation();
  const auto none = [](bool is_set, absl::string_view field, absl::string_view allowed) {
    return is_set ? FieldError(field, absl::StrCat(allowed, " with beam search"), "set") : absl::OkStatus();
  };
  const bool logprobs = proto.logprobs().has_top() || proto.logprobs().has_prompt();
  for (const absl::Status& status :
       {none(!proto.resume_from().empty(), "resume_from", "empty"), none(proto.trace(), "trace", "false"),
        none(logprobs, "logprobs", "unset"), none(!proto.stop().strings().empty(), "stop.strings", "empty"),
        none(!speculation.tree().empty(), "speculation.tree", "empty"),
        none(speculation.has_draft_temperature(), "speculation.draft_temperature", "unset"),
        none(speculation.has_max_context(), "speculation.max_context", "unset"),
        none(speculation.has_lenience() && speculation.lenience() != 1, "speculation.lenience", "1")}) {
    OUTRIDER_TRY(status);
  }
  return CheckSampling(proto.sampling());
}

}  // namespace

v1::DrafterKind DefaultDrafter(const RequestDefaults& defaults) {
  if (defaults.drafter != v1::DRAFTER_KIND_UNSPECIFIED) return defaults.drafter;
  return defaults.has_draft_service ? v1::DRAFTER_KIND_MODEL : v1::DRAFTER_KIND_NGRAM;
}

absl::Status CheckDrafter(v1::DrafterKind kind, const RequestDefaults& defaults,
                          const v1::ServerInfo* target) {
  if (IsConfigured(kind, defaults, target)) return absl::OkStatus();
  std::vector<std::string> allowed;
  for (int each = 0; each < v1::DrafterKind_ARRAYSIZE; ++each) {
    const auto other = static_cast<v1::DrafterKind>(each);
    if (IsConfigured(other, defaults, target)) allowed.push_back(NameOf(other));
  }
  return FieldError("speculation.drafter", absl::StrJoin(allowed, ", "), ProblemWith(kind, target));
}

absl::Status ParseDrafter(const v1::SpeculationOptions& speculation, const RequestDefaults& defaults,
                          const v1::ServerInfo& target, bool repeatable, Request& request) {
  request.drafter = speculation.drafter();
  if (request.drafter == v1::DRAFTER_KIND_UNSPECIFIED) {
    // AUTO drafts from grammars and predictions, but no trees: a request for a tree keeps the default
    // drafter.
    const std::string& tree = speculation.tree().empty() ? defaults.tree : speculation.tree();
    const bool is_known = request.params.sampling().has_grammar() || !request.prediction.empty();
    const bool takes_auto = is_known && (tree == "none" || tree == "auto");
    request.drafter = takes_auto ? v1::DRAFTER_KIND_AUTO : DefaultDrafter(defaults);
  }
  OUTRIDER_TRY(CheckDrafter(request.drafter, defaults, &target));
  if (request.drafter == v1::DRAFTER_KIND_GRAMMAR && !request.params.sampling().has_grammar()) {
    if (speculation.drafter() == request.drafter) {
      return FieldError("speculation.drafter", "another, without sampling.grammar", "grammar");
    }
    request.drafter = v1::DRAFTER_KIND_NONE;
  }
  const int max_draft_tokens = static_cast<int>(target.max_draft_tokens());
  const bool is_chain = request.drafter != v1::DRAFTER_KIND_BOTH_MODELS;
  request.adaptive = defaults.adaptive && repeatable && is_chain && !speculation.has_draft_tokens();
  request.draft_tokens =
      request.adaptive ? max_draft_tokens : std::min(defaults.draft_tokens, max_draft_tokens);
  if (speculation.has_draft_tokens()) {
    const uint32_t k = speculation.draft_tokens();
    OUTRIDER_TRY(CheckRange("speculation.draft_tokens", k, 0, target.max_draft_tokens()));
    request.draft_tokens = static_cast<int>(k);
  }
  if (speculation.has_max_context()) {
    request.max_draft_context = static_cast<int>(std::min(speculation.max_context(), target.max_context()));
  }
  if (request.drafter == v1::DRAFTER_KIND_NONE) {
    request.adaptive = false;
    request.draft_tokens = 0;
  }
  // Asks a proposer for no more than it can give. AUTO has no such limit: n-grams may give more than EAGLE.
  if (const v1::ProposerInfo* own = FindProposer(target, ProposerOf(request.drafter)); own != nullptr) {
    request.draft_tokens = std::min(request.draft_tokens, static_cast<int>(own->max_draft_tokens()));
  }
  if (request.draft_tokens > 0) {
    // If the target has EAGLE, AUTO uses that and saves the calls of the draft service.
    const bool has_eagle = FindProposer(target, v1::PROPOSER_EAGLE) != nullptr;
    const bool takes_eagle = request.drafter == v1::DRAFTER_KIND_AUTO && has_eagle;
    request.params.set_proposer(takes_eagle ? v1::PROPOSER_EAGLE : ProposerOf(request.drafter));
  }
  return absl::OkStatus();
}

std::string ProblemOfTree(const std::string& tree) {
  if (tree == "none" || tree == "auto") return "";
  const absl::StatusOr<TreeShape> shape = ParseTreeShape(tree);
  return shape.ok() ? "" : std::string(shape.status().message());
}

absl::Status ParseTree(const v1::SpeculationOptions& speculation, const TreeLimits& limits,
                       Request& request) {
  OUTRIDER_TRY(FitBothModels(speculation, limits, request));
  constexpr char kField[] = "speculation.tree";
  const bool is_asked_for = !speculation.tree().empty();
  const std::string& text = is_asked_for ? speculation.tree() : limits.default_tree;
  const std::optional<std::string> obstacle = Obstacle(limits, request);
  const int max_nodes = static_cast<int>(limits.target.max_tree_nodes());
  if (text == "auto") {
    request.chooses_tree = !obstacle && limits.repeatable && request.draft_tokens > 0;
    request.max_tree_nodes = max_nodes;
  } else if (text != "none") {
    absl::StatusOr<TreeShape> shape = ParseTreeShape(text);
    if (!shape.ok()) {
      return FieldError(kField, "none, auto, or a shape such as 2x2x1, chains:3 or budget:12", text);
    }
    const bool drafts = request.draft_tokens > 0;
    if (obstacle && drafts && is_asked_for)
      return FieldError(kField, absl::StrCat("none with ", *obstacle), text);
    if (!obstacle && drafts) {
      const v1::ProposerInfo* own = FindProposer(limits.target, request.params.proposer());
      uint32_t max_depth = limits.target.max_draft_tokens();
      if (own != nullptr) max_depth = std::min(max_depth, own->max_draft_tokens());
      const int depth = DepthOf(speculation, *shape, static_cast<int>(max_depth), request);
      const int nodes = MaxNodes(*shape, depth);
      if (nodes > max_nodes && is_asked_for) {
        return FieldError(kField, absl::StrCat("at most ", max_nodes, " nodes"),
                          absl::StrCat(text, ", ", nodes, " nodes"));
      }
      if (nodes <= max_nodes) {
        request.tree = *std::move(shape);
        request.draft_tokens = depth;
        request.adaptive = false;
      }
    }
  }
  if (request.tree) request.schedule = v1::SCHEDULE_LOCKSTEP;
  return ParseOrder(speculation, limits, request);
}

absl::Status ParseBeam(const v1::GenerateRequest& proto, const RequestDefaults& defaults,
                       const v1::ServerInfo& target, Request& request) {
  if (!proto.has_beam()) return absl::OkStatus();
  v1::BeamOptions beam = proto.beam();
  if (!beam.has_length_penalty()) beam.set_length_penalty(1);
  const uint32_t max_width = std::min(static_cast<uint32_t>(defaults.max_samples), target.vocab_size());
  OUTRIDER_TRY(CheckOptions(beam, max_width));
  OUTRIDER_TRY(CheckFieldsForBeam(proto));
  OUTRIDER_TRY(ReplaceDrafter(proto.speculation(), defaults, request));
  if (request.samples > static_cast<int>(beam.width())) {
    return FieldError("n", absl::StrCat("1 to ", beam.width(), ", the width of the search"),
                      absl::StrCat(request.samples));
  }
  if (!beam.has_draft_width()) beam.set_draft_width(std::min(kWiderDraft * beam.width(), kMaxDraftWidth));
  request.candidates =
      BeamSearch::RowSize({.width = static_cast<int>(beam.width()), .end_ids = request.end_ids});
  if (request.candidates > kMaxCandidates) {
    return FieldError("stop.token_ids",
                      absl::StrCat("at most ", kMaxCandidates - static_cast<int>(beam.width()), " end ids"),
                      absl::StrCat(request.end_ids.size(), " end ids, the model's own included"));
  }
  v1::SequenceParams& params = request.params;
  params.mutable_sampling()->Clear();
  params.mutable_sampling()->set_temperature(0);
  params.set_rule(v1::RULE_TOKEN);
  params.clear_lenience();
  // A search finds the same texts whatever K is, so the policy may always choose it.
  request.adaptive = defaults.adaptive && !proto.speculation().has_draft_tokens() &&
                     request.drafter != v1::DRAFTER_KIND_NONE;
  if (request.adaptive) {
    request.draft_tokens = std::min(kBeamDepth, static_cast<int>(target.max_draft_tokens()));
  }
  const bool drafts_trees =
      request.drafter == v1::DRAFTER_KIND_MODEL && (target.tree_row_invariant() || target.inexact_trees());
  request.max_tree_nodes = drafts_trees ? static_cast<int>(target.max_tree_nodes()) : 0;
  request.tree.reset();
  request.chooses_tree = false;
  request.schedule = v1::SCHEDULE_LOCKSTEP;
  request.beam = std::move(beam);
  return absl::OkStatus();
}

}  // namespace outrider
