// The cost of drafting from the text where that gives nothing: random text, on a machine with known times.
#include <gtest/gtest.h>

#include <memory>
#include <random>

#include "coordinator/decode/drafters/local_drafters.h"
#include "coordinator/policy/draft_choice.h"
#include "tests/unit/drafter_testing.h"

namespace outrider {
namespace {

// Five rows take 1.32 times as long as one, as measured with a small model with packed weights.
constexpr double kRoundSeconds = 4e-3, kRowSeconds = 0.32e-3, kDraftSeconds = 5e-6;

double RoundTime(size_t drafted) {
  return kRoundSeconds + kRowSeconds * static_cast<double>(drafted) + (drafted > 0 ? kDraftSeconds : 0);
}

RoundTimes TimesOf(size_t drafted) {
  const auto in = [](double seconds) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  };
  RoundTimes times;
  times.draft = in(drafted > 0 ? kDraftSeconds : 0);
  times.verify = in(RoundTime(drafted));
  times.round = times.draft + times.verify;
  times.verify_server.set_compute_us(static_cast<uint32_t>(1e6 * RoundTime(drafted)));
  times.verify_server.set_batch_sequences(1);
  times.verify_server.set_batch_rows(static_cast<uint32_t>(drafted + 1));
  return times;
}

// The speed of decoding 2000 random tokens, as a multiple of plain decoding.
double SpeedOnRandomText(v1::DrafterKind kind, double temperature, uint32_t vocab, bool adaptive) {
  constexpr int kTokens = 2000;
  Request request;
  request.params.set_rule(v1::RULE_TOKEN);
  request.params.mutable_sampling()->set_temperature(static_cast<float>(temperature));
  request.prompt = RandomTokens(200, static_cast<TokenId>(vocab));
  request.max_tokens = kTokens;
  request.draft_tokens = 8;
  request.adaptive = adaptive;
  request.drafter = kind;
  Generation generation(std::move(request), &TestTokenizer(), Clock::now());
  std::unique_ptr<LocalDrafter> drafter;
  if (kind == v1::DRAFTER_KIND_COPY) {
    drafter = std::make_unique<CopyDrafter>(&generation);
  } else {
    drafter = std::make_unique<NgramDrafter>(&generation, NgramOptions());
  }
  DraftChoice policy(/*max_branches=*/0);
  policy.Begin();
  std::mt19937 random(3);
  double seconds = 0;
  while (!generation.finished()) {
    const int most = std::min(policy.Choose(generation).most, std::max(generation.DraftRoom(), 0));
    const Proposal proposal = most > 0 ? drafter->Draft(most) : Proposal();
    Verdict verdict;
    TokenId token = static_cast<TokenId>(random() % vocab);
    while (verdict.path.size() < proposal.size() && proposal[verdict.path.size()].token == token) {
      verdict.path.push_back(static_cast<int>(verdict.path.size()));
      token = static_cast<TokenId>(random() % vocab);
    }
    verdict.token = token;
    if (!proposal.empty()) {
      verdict.kind =
          verdict.path.size() == proposal.size() ? Verdict::Kind::kBonus : Verdict::Kind::kCorrected;
    }
    const bool is_prompt = generation.emitted() == 0;
    const RoundTimes times = TimesOf(proposal.size());
    const int emitted = generation.Commit(proposal, verdict).tokens_size();
    seconds += RoundTime(proposal.size());
    if (is_prompt) continue;
    policy.OnRound({.generation = &generation,
                    .proposal = &proposal,
                    .verdict = &verdict,
                    .drafter = kind,
                    .draft_status = DraftStatus::kUsable,
                    .chosen = most,
                    .emitted = emitted,
                    .running = 1,
                    .proposal_bytes = 0,
                    .ahead = {},
                    .times = times});
  }
  return generation.emitted() * RoundTime(0) / seconds;
}

TEST(LocalDrafters, CostNothingOnRandomText) {
  for (const v1::DrafterKind kind : {v1::DRAFTER_KIND_NGRAM, v1::DRAFTER_KIND_COPY}) {
    for (const double temperature : {0.0, 1.0}) {
      for (const uint32_t vocab : {20U, 200U, 2000U}) {
        EXPECT_GE(SpeedOnRandomText(kind, temperature, vocab, /*adaptive=*/true), 0.97)
            << kind << " at temperature " << temperature << ", " << vocab << " tokens";
      }
    }
  }
}

// The control: the cost of the same drafts where K is fixed.
TEST(LocalDrafters, CostMuchWhereTheirLengthIsFixed) {
  EXPECT_LT(SpeedOnRandomText(v1::DRAFTER_KIND_NGRAM, 0, 20, /*adaptive=*/false), 0.85);
}

}  // namespace
}  // namespace outrider
