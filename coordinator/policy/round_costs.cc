#include "coordinator/policy/round_costs.h"

#include <algorithm>

namespace outrider {
namespace {

double ComputeSeconds(const v1::ItemTiming& timing) { return 1e-6 * timing.compute_us(); }

// Under load, the part of a mean step that is not fixed belongs to the units.
double PerUnit(const LinearTime& alone, const RunningMean& seconds, const RunningMean& size, int running) {
  if (running <= 1) return alone.per_unit();
  return std::max(seconds.mean(0) - alone.fixed(), 0.0) / size.mean(1);
}

}  // namespace

void RoundCosts::ObserveVerify(const RoundTimes& times, int running) {
  const v1::ItemTiming& verify = times.verify_server;
  if (verify.batch_rows() == 0) return;
  const double seconds = ComputeSeconds(verify);
  verify_seconds_.Observe(seconds);
  verify_rows_.Observe(verify.batch_rows());
  verify_batch_.Observe(verify.batch_sequences());
  if (running != 1) return;
  verify_.Observe(verify.batch_rows(), seconds);
  verify_wire_.Observe(Seconds(times.verify) - seconds);
}

void RoundCosts::ObserveChain(const RoundReport& round) {
  proposed_.Observe(1);
  const v1::ItemTiming& draft = round.times.draft_server;
  const double seconds = ComputeSeconds(draft), batch = std::max<uint32_t>(draft.batch_sequences(), 1);
  const double step = seconds / (round.ahead.steps > 0 ? round.ahead.steps : round.drafted());
  step_seconds_.Observe(step);
  draft_batch_.Observe(batch);
  if (round.running != 1) return;
  step_.Observe(batch, step);
  if (round.ahead.steps > 0) return;
  proposal_.Observe(round.drafted(), seconds);
  draft_wire_.Observe(Seconds(round.times.draft) - seconds);
}

void RoundCosts::ObserveTree(const RoundReport& round) {
  proposed_.Observe(1);
  if (round.running != 1) return;
  const double levels = Depth(*round.proposal);
  step_.Observe(round.drafted() / levels, ComputeSeconds(round.times.draft_server) / levels);
}

void RoundCosts::ObserveFailure(const RoundTimes& times) {
  proposed_.Observe(0);
  failed_seconds_.Observe(Seconds(times.draft));
}

void RoundCosts::AgeDraft(double proposals) {
  proposal_.Age(proposals);
  step_.Age(proposals);
  for (RunningMean* mean : {&step_seconds_, &draft_wire_, &draft_batch_, &proposed_, &failed_seconds_}) {
    mean->Age(proposals);
  }
}

double RoundCosts::Verify(int k, int running) const {
  const double row = PerUnit(verify_, verify_seconds_, verify_rows_, running);
  return verify_.fixed() / verify_batch_.mean(1) + row * (k + 1) +
         verify_wire_.mean(0) / std::max(running, 1);
}

double RoundCosts::Propose(int k, int running) const {
  if (running <= 1) return draft_wire_.mean(0) + proposal_.fixed() + k * proposal_.per_unit();
  const double sequence = PerUnit(step_, step_seconds_, draft_batch_, running);
  return draft_wire_.mean(0) / running + k * (step_.fixed() / draft_batch_.mean(1) + sequence);
}

double RoundCosts::Failure(int running) const { return failed_seconds_.mean(0) / std::max(running, 1); }

TreeCosts RoundCosts::tree() const {
  return {.round = Verify(0, 1) - verify_.per_unit() + draft_wire_.mean(0) + proposal_.fixed(),
          .row = verify_.per_unit(),
          .level = proposal_.per_unit(),
          .node = step_.per_unit()};
}

}  // namespace outrider
