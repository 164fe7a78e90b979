// How a sequence is sampled, drafted and verified.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "common/spec/controls.h"
#include "common/spec/random.h"
#include "common/spec/verify.h"

namespace outrider {

// The ways in which a target can propose tokens itself.
enum class ProposerKind : uint8_t { kMedusa, kBlockwise, kEagle, kLayerSkip, kPass };

// The kinds' names in flags and config.json, in the order of ProposerKind.
inline constexpr std::array<absl::string_view, 5> kProposerNames = {"medusa", "blockwise", "eagle",
                                                                    "layer_skip", "pass"};

inline absl::string_view NameOf(ProposerKind kind) { return kProposerNames[static_cast<size_t>(kind)]; }

inline std::optional<ProposerKind> ProposerFromName(absl::string_view name) {
  for (size_t i = 0; i < kProposerNames.size(); ++i) {
    if (kProposerNames[i] == name) return static_cast<ProposerKind>(i);
  }
  return std::nullopt;
}

// All parameters of a sequence (SequenceParams of the protocol).
struct SequenceParams {
  SamplingParams sampling = {};
  RandomKey key = {};
  Rule rule = Rule::kToken;
  int prompt_length = 0;
  int draft_top_n = 0;  // tokens kept of the draft's distribution; at least 1
  std::optional<double> draft_temperature = std::nullopt;
  double lenience = 1;
  int logprobs = -1;  // alternatives to report with each emitted token; -1: no log-probabilities
  bool logprobs_before_controls = false;
  uint64_t cache_salt = 0;  // which cached prefixes it may find
  SiblingOrder sibling_order = SiblingOrder::kGiven;
  std::optional<ProposerKind> proposer = std::nullopt;  // of the target's own proposals
};

inline VerifyOptions OptionsOf(const SequenceParams& params) {
  return {.rule = params.rule, .lenience = params.lenience, .sibling_order = params.sibling_order};
}

// The sampling parameters of the target's own proposals. Blockwise parallel decoding takes the likeliest
// token.
inline SamplingParams ProposalSampling(const SequenceParams& params) {
  SamplingParams sampling = params.sampling;
  if (params.draft_temperature) sampling.temperature = *params.draft_temperature;
  if (params.proposer == ProposerKind::kBlockwise) sampling.temperature = 0;
  return sampling;
}

// Whether the sequence's blocks hold hidden states for its proposer, besides keys and values.
inline bool KeepsHiddenStates(const SequenceParams& params) {
  return params.proposer == ProposerKind::kEagle;
}
// The salt of the cached prefixes that the sequence may find. Prefixes with hidden states have another salt.
inline uint64_t CacheSaltOf(const SequenceParams& params) {
  return params.cache_salt ^ (KeepsHiddenStates(params) ? 0x9e3779b97f4a7c15 : 0);
}

}  // namespace outrider
