// The part of a sequence that one server is believed to hold, and so what it must be sent next.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "common/kv/prefix_hash.h"
#include "common/spec/status.h"
#include "coordinator/generation/generation.h"
#include "outrider/v1/sequence.pb.h"

namespace outrider {

// Another sequence that begins with the same tokens, whose cache a server can copy.
struct Fork {
  std::string of;     // its sequence id; empty: there is none
  size_t tokens = 0;  // length of the common prefix
};

// How to deal with an item that a server refused.
enum class Remedy {
  kResend,  // the belief was wrong and is corrected: send what the server lacks, at once
  kWait,    // the server has no room: send it again later
  kNone,    // sending tokens or parameters again would not help
};

// A wrong belief is harmless: the server refuses the item, and the tokens are sent again. One thread.
class RemoteSequence {
 public:
  explicit RemoteSequence(Fork fork = {})
      : held_(fork.tokens), agreed_(fork.tokens), fork_of_(std::move(fork.of)) {}

  // The index of the first token to send when n tokens are committed. Skips the tokens that the server holds
  // and that are known to be committed, except the last of the n, since an item must not be empty.
  uint32_t Base(size_t n) const { return static_cast<uint32_t>(std::min({held_, agreed_, n - 1})); }

  // The fork for a new sequence that shares its first `assumed` tokens with this one, which the server knows
  // as `id`. It has those of them that the server holds, whether committed or only drafted.
  Fork Branch(const std::string& id, size_t assumed) const { return {id, std::min(held_, assumed)}; }

  // Whether the next item can omit the parameters.
  bool params_known() const { return params_known_; }

  // The sequence that this one is to begin as a copy of; empty once the server knows this one.
  const std::string& fork_of() const { return fork_of_; }

  // Call before an item is sent. A new boot id means that the server has lost the sequence.
  void OnServer(uint64_t boot_id) {
    if (boot_id_ != 0 && boot_id != boot_id_) Forget();
    boot_id_ = boot_id;
  }

  // An item with all n tokens was answered. The first n + accepted of the `cached` tokens are committed.
  void OnAnswer(size_t cached, size_t n, size_t accepted) {
    params_known_ = true;
    fork_of_.clear();
    held_ = cached;
    agreed_ = std::min(cached, n + accepted);
  }

  // The verdict came after the answer: `accepted` of the drafted tokens that the server holds are committed.
  void OnVerdict(size_t n, size_t accepted) {
    if (agreed_ == n) agreed_ = std::min(held_, n + accepted);
  }

  // An item was refused with this status by a server that holds `cached` tokens of the sequence.
  Remedy OnRefusal(const absl::Status& status, size_t cached) {
    switch (status.code()) {
      case absl::StatusCode::kFailedPrecondition: {
        const std::string reason = ReasonOf(status);
        if (reason == "PARAMS_UNKNOWN") {
          params_known_ = false;
        } else if (reason == "PREFIX_MISMATCH") {
          agreed_ = 0;
        } else {
          OnHolds(cached);
        }
        return Remedy::kResend;
      }
      case absl::StatusCode::kNotFound:
        Forget();
        return Remedy::kResend;
      case absl::StatusCode::kResourceExhausted:
        OnHolds(cached);
        return Remedy::kWait;
      default:
        return Remedy::kNone;
    }
  }

  // Assumes that the server holds nothing of the sequence, so that all of it is sent next.
  void Forget() {
    held_ = agreed_ = 0;
    params_known_ = false;
    fork_of_.clear();
  }

 private:
  void OnHolds(size_t cached) {
    held_ = cached;
    agreed_ = std::min(agreed_, cached);
  }

  size_t held_;
  size_t agreed_;
  std::string fork_of_;
  uint64_t boot_id_ = 0;
  bool params_known_ = false;
};

// Fills in the tokens that the server lacks, as round `round` of the sequence that it knows as `sequence_id`.
// The sequence has `end` tokens: the generation's, then `assumed`. Sends the parameters unless the server
// knows them or some tokens are assumed: such a sequence is a copy, and has those of its origin. In a round
// that is traced, the item carries the traceparent.
inline void FillUpdate(const Generation& generation, std::span<const TokenId> assumed,
                       const std::string& sequence_id, const RemoteSequence& remote, uint64_t round,
                       size_t end, v1::SequenceUpdate* update) {
  const size_t n = generation.size();
  const uint32_t base = remote.Base(end);
  update->set_sequence_id(sequence_id);
  update->set_round(round);
  update->set_base(base);
  uint64_t hash = generation.prefix_hash(std::min<size_t>(base, n));
  for (size_t i = n; i < base; ++i) hash = ExtendPrefixHash(hash, assumed[i - n]);
  update->set_prefix_hash(hash);
  for (size_t i = base; i < end; ++i) {
    update->add_tokens(static_cast<uint32_t>(i < n ? generation.tokens()[i] : assumed[i - n]));
  }
  update->set_fork_of(remote.fork_of());
  update->set_params_hash(generation.params_hash());
  if (assumed.empty() && (base == 0 || !remote.params_known())) {
    *update->mutable_params() = generation.request().params;
    *update->mutable_context() = generation.request().context;
  }
  if (!generation.round_trace().empty()) update->mutable_context()->set_traceparent(generation.round_trace());
}

}  // namespace outrider
