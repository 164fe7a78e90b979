#include "coordinator/drafters/fit_vocabulary.h"

#include <algorithm>

#include "common/rpc/sampling.h"

namespace outrider {
namespace {

bool FitParams(int draft_vocab, int target_vocab, v1::SequenceParams& params) {
  v1::SamplingParams& sampling = *params.mutable_sampling();
  const auto is_beyond = [draft_vocab](uint32_t id) { return id >= static_cast<uint32_t>(draft_vocab); };
  const auto drop_beyond = [&is_beyond](google::protobuf::RepeatedField<uint32_t>& ids) {
    ids.erase(std::remove_if(ids.begin(), ids.end(), is_beyond), ids.end());
  };
  const bool had_allowed = !sampling.allowed_ids().empty();
  drop_beyond(*sampling.mutable_allowed_ids());
  // Without any id that is allowed, all would be.
  if (had_allowed && sampling.allowed_ids().empty()) return false;
  drop_beyond(*sampling.mutable_bad_ids());
  drop_beyond(*params.mutable_end_ids());
  auto& biases = *sampling.mutable_logit_bias();
  biases.erase(std::remove_if(biases.begin(), biases.end(),
                              [&](const v1::LogitBias& bias) { return is_beyond(bias.token()); }),
               biases.end());
  for (int id = target_vocab; id < draft_vocab; ++id) sampling.add_bad_ids(static_cast<uint32_t>(id));
  return ValidateSamplingParams(ParseSampling(sampling, params.end_ids()), draft_vocab).ok();
}

}  // namespace

bool FitVocabulary(int draft_vocab, int target_vocab, v1::SequenceUpdate& update) {
  if (!CheckTokenIds(update.tokens(), static_cast<uint32_t>(draft_vocab), "tokens").ok()) return false;
  return !update.has_params() || FitParams(draft_vocab, target_vocab, *update.mutable_params());
}

}  // namespace outrider
