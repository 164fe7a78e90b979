#include "coordinator/link/check_server.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/text/model_fingerprint.h"

namespace outrider {
namespace {

constexpr char kRestart[] = "; a coordinator that is started again takes it";

std::string Hex(uint64_t value) { return absl::StrCat(absl::Hex(value, absl::kZeroPad16)); }

std::string Fingerprints(uint64_t one, uint64_t other) {
  return absl::StrCat(" (fingerprints ", Hex(one), " and ", Hex(other), ")");
}

}  // namespace

absl::Status CheckFingerprint(const v1::ServerInfo& info, const Tokenizer& tokenizer) {
  const std::vector<TokenId> eos(info.eos_ids().begin(), info.eos_ids().end());
  const uint64_t expected =
      ModelFingerprint(tokenizer.Fingerprint(), static_cast<int>(info.vocab_size()), eos);
  if (info.fingerprint() == expected) return absl::OkStatus();
  const int theirs = static_cast<int>(info.vocab_size());
  const int ours = tokenizer.vocab_size();
  return absl::FailedPreconditionError(absl::StrCat(
      info.model(), " has another tokenizer than the coordinator",
      theirs == ours ? absl::StrCat(", though both have ", ours, " tokens")
                     : absl::StrCat(": its vocabulary has ", theirs, " tokens, the coordinator's ", ours),
      Fingerprints(info.fingerprint(), expected)));
}

absl::Status CheckPair(const v1::ServerInfo& draft, const v1::ServerInfo* target) {
  if (target == nullptr || draft.fingerprint() == target->fingerprint()) return absl::OkStatus();
  const auto both = [](const auto& drafts, const auto& targets) {
    return absl::StrCat(drafts, " for the draft, ", targets, " for the target");
  };
  const std::string drafts_ends = absl::StrJoin(draft.eos_ids(), " ");
  const std::string targets_ends = absl::StrJoin(target->eos_ids(), " ");
  // Then the fingerprints differ for that alone, or CheckFingerprint says so.
  const bool sizes_differ = draft.vocab_size() != target->vocab_size();
  if (sizes_differ && drafts_ends == targets_ends) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "draft ", draft.model(), " and target ", target->model(),
      drafts_ends != targets_ends
          ? absl::StrCat(" end a text with different tokens, ", both(drafts_ends, targets_ends))
          : absl::StrCat(" have different tokenizers, though both have ", draft.vocab_size(), " tokens"),
      Fingerprints(draft.fingerprint(), target->fingerprint())));
}

absl::Status CheckWeights(const v1::ServerInfo& info, const v1::ServerInfo* others) {
  if (others == nullptr || info.weights_hash() == 0 || others->weights_hash() == 0) return absl::OkStatus();
  if (info.weights_hash() == others->weights_hash()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(info.model(), " has other weights than those that were met first (hashes ",
                   Hex(info.weights_hash()), " and ", Hex(others->weights_hash()), ")", kRestart));
}

absl::Status CheckNumerics(const v1::ServerInfo& info, const v1::ServerInfo* others) {
  if (others == nullptr || info.numerics().empty() || others->numerics().empty()) return absl::OkStatus();
  if (info.numerics() == others->numerics()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(info.model(), " computes other bits than those that were met first (", info.numerics(),
                   ", and ", others->numerics(), "); --mixed-numerics takes it all the same"));
}

}  // namespace outrider
