#include "common/serve/serve_item.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/rpc/drafters.h"
#include "common/rpc/error.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

// A few rounds of a small model. Room is made when another request, or one of its rounds, ends.
constexpr absl::Duration kRetryDelay = absl::Milliseconds(20);

// The first error goes to *invalid, unless there is one already.
std::shared_ptr<const SequenceParams> ParseParams(const v1::SequenceParams& proto, int default_top_n,
                                                  absl::Status* invalid) {
  auto params = std::make_shared<SequenceParams>();
  params->sampling = ParseSampling(proto.sampling(), proto.end_ids());
  params->key = {proto.seed(), proto.sample_index()};
  params->prompt_length = static_cast<int>(proto.prompt_length());
  params->draft_top_n = proto.draft_top_n() == 0 ? default_top_n : static_cast<int>(proto.draft_top_n());
  if (proto.has_draft_temperature()) params->draft_temperature = proto.draft_temperature();
  if (proto.has_lenience()) params->lenience = proto.lenience();
  if (proto.has_logprobs()) {
    invalid->Update(CheckTopLogprobs("logprobs", proto.logprobs()));
    params->logprobs = static_cast<int>(proto.logprobs());
  }
  params->logprobs_before_controls = proto.logprobs_before_controls();
  if (proto.sibling_order() == v1::SIBLING_ORDER_RANDOM) params->sibling_order = SiblingOrder::kRandom;
  params->cache_salt = proto.cache_salt();
  params->proposer = ProposerKindOf(proto.proposer());
  if (!params->proposer && proto.proposer() != v1::PROPOSER_UNSPECIFIED) {
    invalid->Update(FieldError("proposer", absl::StrJoin(kProposerNames, ", "),
                               absl::StrCat("unknown value ", proto.proposer())));
  }
  const absl::StatusOr<Rule> rule = ParseRule(proto.rule());
  invalid->Update(rule.status());
  if (rule.ok()) {
    params->rule = *rule;
    invalid->Update(ValidateVerifyOptions(OptionsOf(*params)));
  }
  return params;
}

}  // namespace

absl::StatusOr<SequenceId> ParseSequenceId(const std::string& bytes) {
  SequenceId id;
  if (bytes.size() != sizeof(id.hi) + sizeof(id.lo)) {
    return InvalidFor("SEQUENCE_ID_INVALID", "sequence_id: ", bytes.size(), " bytes; allowed: 16");
  }
  std::memcpy(&id.hi, bytes.data(), sizeof(id.hi));
  std::memcpy(&id.lo, bytes.data() + sizeof(id.hi), sizeof(id.lo));
  return id;
}

absl::Status CheckTopLogprobs(absl::string_view field, uint32_t top) {
  if (top <= kMaxTopLogProbabilities) return absl::OkStatus();
  return FieldError(field, absl::StrCat("0 to ", kMaxTopLogProbabilities), absl::StrCat(top));
}

absl::StatusOr<WorkItem> ParseUpdate(const v1::SequenceUpdate& update, int vocab_size, int default_top_n) {
  WorkItem item;
  item.id = OUTRIDER_TRY(ParseSequenceId(update.sequence_id()));
  item.round = update.round();
  item.base = update.base();
  item.prefix_hash = update.prefix_hash();
  item.params_hash = update.params_hash();
  item.deadline = DeadlineOf(update.budget());
  // From here on the item has an id, so errors are answered under that id.
  item.invalid = CheckTokenIds(update.tokens(), static_cast<uint32_t>(vocab_size), "tokens");
  if (update.tokens().empty()) item.invalid.Update(FieldError("tokens", "at least one", "empty"));
  item.tokens = ToTokens(update.tokens());
  if (!update.fork_of().empty()) {
    absl::StatusOr<SequenceId> fork_of = ParseSequenceId(update.fork_of());
    if (!fork_of.ok()) {
      item.invalid.Update(FieldError("fork_of", "16 bytes", absl::StrCat(update.fork_of().size(), " bytes")));
    } else if (*fork_of == item.id) {
      item.invalid.Update(FieldError("fork_of", "another sequence", "the item's own"));
    } else {
      item.fork_of = *fork_of;
    }
  }
  if (update.has_params()) item.params = ParseParams(update.params(), default_top_n, &item.invalid);
  return item;
}

absl::Time DeadlineOf(const google::protobuf::Duration& budget) {
  const absl::Duration left = absl::Seconds(budget.seconds()) + absl::Nanoseconds(budget.nanos());
  return left > absl::ZeroDuration() ? absl::Now() + left : absl::InfiniteFuture();
}

google::rpc::Status ItemError(const absl::Status& status) {
  const bool passes = absl::IsResourceExhausted(status) || absl::IsUnavailable(status);
  return ToProto(passes ? WithRetryDelay(status, kRetryDelay) : status);
}

v1::PositionLogprobs ToProto(const PositionLogProbabilities& position) {
  v1::PositionLogprobs proto;
  *proto.mutable_token() = SerializeLogprob(position.token);
  for (const TokenLogProbability& token : position.top) *proto.add_top() = SerializeLogprob(token);
  return proto;
}

v1::ItemTiming ToProto(const WorkTiming& timing) {
  v1::ItemTiming proto;
  proto.set_queue_us(static_cast<uint32_t>(absl::ToInt64Microseconds(timing.queue)));
  proto.set_compute_us(static_cast<uint32_t>(absl::ToInt64Microseconds(timing.compute)));
  proto.set_batch_sequences(static_cast<uint32_t>(timing.batch_sequences));
  proto.set_batch_rows(static_cast<uint32_t>(timing.batch_rows));
  return proto;
}

}  // namespace outrider
