// The modes that benchmarks of drafting compare: plain decoding, chains, trees, and the coordinator's own
// choice.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "bench/pair_helpers.h"
#include "common/spec/tree_shape.h"

namespace outrider {

struct TreeMode {
  std::string name;
  std::optional<int> k;  // the depth; nullopt: the coordinator chooses
  std::string tree = "none";
  v1::DrafterKind drafter = v1::DRAFTER_KIND_MODEL;

  bool is_chain() const { return k && *k > 0 && tree == "none"; }
  bool is_tree() const { return k && tree != "none"; }
};

// Tokens of q that every drafter sends. Their defaults differ, but only drafting is compared.
constexpr uint32_t kDraftTopN = 256;

inline v1::GenerateRequest MakeRequest(const TreeMode& mode, const std::string& prompt, double temperature,
                                       uint64_t seed, int max_tokens) {
  v1::GenerateRequest request = MakeRequest(prompt, temperature, mode.k.value_or(0), seed, max_tokens);
  request.mutable_speculation()->set_tree(mode.tree);
  request.mutable_speculation()->set_drafter(mode.drafter);
  request.mutable_speculation()->set_schedule(v1::SCHEDULE_LOCKSTEP);
  request.mutable_speculation()->set_draft_top_n(kDraftTopN);
  if (!mode.k) LeaveKToPolicy(request);
  return request;
}

// Parses a tree from "SHAPE@DEPTH", or returns InvalidArgument.
inline absl::StatusOr<TreeMode> ParseTreeMode(const std::string& text) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits('@', 1));
  int depth = 0;
  if (!ParseTreeShape(parts.first).ok() || !absl::SimpleAtoi(parts.second, &depth) || depth < 1) {
    return absl::InvalidArgumentError(absl::StrCat("--shape ", text, ": not of the form 2x2x1@3"));
  }
  return TreeMode{text, depth, parts.first};
}

// Plain decoding, chains of 1 to `max_k` tokens, the trees, the policy with chains alone, and with trees.
inline absl::StatusOr<std::vector<TreeMode>> MakeTreeModes(int max_k,
                                                           const std::vector<std::string>& shapes) {
  std::vector<TreeMode> modes = {{"plain", 0}};
  for (int k = 1; k <= max_k; ++k) modes.push_back({absl::StrCat("K = ", k), k});
  for (const std::string& shape : shapes) {
    auto mode = ParseTreeMode(shape);
    if (!mode.ok()) return mode.status();
    if (*mode->k > max_k) {
      return absl::InvalidArgumentError(absl::StrCat("--shape ", shape, ": deeper than --max-k ", max_k));
    }
    modes.push_back(*std::move(mode));
  }
  modes.push_back({"policy", std::nullopt});
  modes.push_back({"auto", std::nullopt, "auto"});
  return modes;
}

}  // namespace outrider
