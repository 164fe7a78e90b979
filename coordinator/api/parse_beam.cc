#include "coordinator/api/parse_request.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rpc/drafters.h"
#include "common/rpc/error.h"
#include "coordinator/decode/beam_search.h"

namespace outrider {
namespace {

// The most candidates in the target's rows: VerifyItem.candidates.
constexpr int kMaxCandidates = 256;
constexpr uint32_t kMaxDraftWidth = 256;
constexpr double kMaxLengthPenalty = 10;
// How far the draft looks ahead by default, and how many times as many texts it looks at: on the shipped pair
// 1.9 to 2.5 tokens a call for widths of 8 to 2; more steps yield little.
constexpr int kDepth = 2;
constexpr uint32_t kWiderDraft = 3;

absl::Status CheckOptions(const v1::BeamOptions& beam, uint32_t max_width) {
  absl::Status status = CheckRange("beam.width", beam.width(), 1, max_width);
  if (beam.has_draft_width()) {
    status.Update(CheckRange("beam.draft_width", beam.draft_width(), beam.width(), kMaxDraftWidth));
  }
  if (!status.ok()) return status;
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

// The target names candidates or proposes, not both. A default gives way; K is as it was filled in.
absl::Status ReplaceProposer(const v1::SpeculationOptions& speculation, const RequestDefaults& defaults,
                             Request& request) {
  request.params.clear_proposer();
  if (ProposerOf(request.drafter) == v1::PROPOSER_UNSPECIFIED) return absl::OkStatus();
  if (speculation.drafter() == request.drafter) {
    return FieldError("speculation.drafter", "one that is not the target itself with beam search",
                      NameOf(request.drafter));
  }
  request.drafter = defaults.has_draft_service ? v1::DRAFTER_KIND_MODEL : v1::DRAFTER_KIND_NONE;
  if (!defaults.has_draft_service) request.draft_tokens = 0;
  return absl::OkStatus();
}

// A search is for the likeliest texts under the model's own probabilities.
absl::Status CheckSampling(v1::SamplingParams sampling) {
  const float temperature = sampling.temperature();
  if (temperature != 0 && temperature != 1) {
    return FieldError("sampling.temperature", "0 or 1 with beam search", absl::StrCat(temperature));
  }
  // Fields that change nothing may be set.
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

// Fields that do not go with a search.
absl::Status CheckOthers(const v1::GenerateRequest& proto) {
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
        none(speculation.has_lenience() && speculation.lenience() != 1, "speculation.lenience", "1")}) {
    if (!status.ok()) return status;
  }
  return CheckSampling(proto.sampling());
}

}  // namespace

absl::Status ParseBeam(const v1::GenerateRequest& proto, const RequestDefaults& defaults,
                       const v1::ServerInfo& target, Request& request) {
  if (!proto.has_beam()) return absl::OkStatus();
  v1::BeamOptions beam = proto.beam();
  if (!beam.has_length_penalty()) beam.set_length_penalty(1);
  const uint32_t max_width = std::min(static_cast<uint32_t>(defaults.max_samples), target.vocab_size());
  if (absl::Status status = CheckOptions(beam, max_width); !status.ok()) return status;
  if (absl::Status status = CheckOthers(proto); !status.ok()) return status;
  if (absl::Status status = ReplaceProposer(proto.speculation(), defaults, request); !status.ok()) {
    return status;
  }
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
  // No seed changes what is found.
  request.adaptive = defaults.adaptive && !proto.speculation().has_draft_tokens() &&
                     request.drafter != v1::DRAFTER_KIND_NONE;
  if (request.adaptive) {
    request.draft_tokens = std::min(kDepth, static_cast<int>(target.max_draft_tokens()));
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
