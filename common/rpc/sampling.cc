#include "common/rpc/sampling.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rpc/error.h"

namespace outrider {
namespace {

std::vector<TokenId> ToTokens(const google::protobuf::RepeatedField<uint32_t>& ids) {
  return std::vector<TokenId>(ids.begin(), ids.end());
}

}  // namespace

absl::StatusOr<Rule> ParseRule(v1::Rule rule) {
  switch (rule) {
    case v1::RULE_TOKEN:
      return Rule::kToken;
    case v1::RULE_BLOCK:
      return Rule::kBlock;
    case v1::RULE_COUPLED:
      return Rule::kCoupled;
    default:
      return MakeError(absl::StatusCode::kInvalidArgument, "RULE_UNKNOWN",
                       absl::StrCat("rule: ", static_cast<int>(rule), "; allowed: token, block, coupled"));
  }
}

absl::Status CheckTokenIds(const google::protobuf::RepeatedField<uint32_t>& ids, uint32_t vocab_size,
                           absl::string_view field) {
  for (uint32_t id : ids) {
    if (id >= vocab_size) return FieldError(field, absl::StrCat("0 to ", vocab_size - 1), absl::StrCat(id));
  }
  return absl::OkStatus();
}

SamplingParams ParseSampling(const v1::SamplingParams& proto,
                             const google::protobuf::RepeatedField<uint32_t>& end_ids) {
  SamplingParams params;
  if (proto.has_temperature()) params.temperature = proto.temperature();
  params.top_k = static_cast<int>(proto.top_k());
  if (proto.has_top_p()) params.top_p = proto.top_p();
  params.min_p = proto.min_p();
  if (proto.has_repetition_penalty()) params.repetition_penalty = proto.repetition_penalty();
  params.presence_penalty = proto.presence_penalty();
  params.frequency_penalty = proto.frequency_penalty();
  for (const v1::LogitBias& bias : proto.logit_bias()) {
    params.logit_bias.emplace_back(static_cast<TokenId>(bias.token()), bias.bias());
  }
  params.allowed_ids = ToTokens(proto.allowed_ids());
  params.bad_ids = ToTokens(proto.bad_ids());
  params.min_tokens = static_cast<int>(proto.min_tokens());
  params.eos_ids = ToTokens(end_ids);
  return params;
}

}  // namespace outrider
