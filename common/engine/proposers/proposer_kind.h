// The ways in which a target can propose tokens itself.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace outrider {

enum class ProposerKind : uint8_t { kMedusa, kBlockwise, kEagle, kLayerSkip, kPass };

// In the order of ProposerKind; what flags and config.json call them.
inline constexpr std::array<absl::string_view, 5> kProposerNames = {"medusa", "blockwise", "eagle",
                                                                    "layer_skip", "pass"};

inline absl::string_view NameOf(ProposerKind kind) { return kProposerNames[static_cast<size_t>(kind)]; }

inline std::optional<ProposerKind> ProposerFromName(absl::string_view name) {
  for (size_t i = 0; i < kProposerNames.size(); ++i) {
    if (kProposerNames[i] == name) return static_cast<ProposerKind>(i);
  }
  return std::nullopt;
}

}  // namespace outrider
