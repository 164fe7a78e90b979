// A worker that runs device tasks gives the same answers, to the bit, as one that decides on the host: both
// have the same logits.
#include <gmock/gmock.h>

#include <future>

#include "common/engine/cuda/can_run.h"
#include "common/engine/worker.h"
#include "common/kv/prefix_hash.h"
#include "draft_service/draft_sampler.h"
#include "host_device_model.h"
#include "target_service/rejection_sampler.h"

namespace outrider {
namespace {

constexpr char kModel[] = "tests/data/engine/gqa3-sharded";
constexpr int kTeam = 3;

struct Setting {
  const char* name;
  double temperature = 1;
  int top_k = 0;
  double top_p = 1;
  double min_p = 0;
  Rule rule = Rule::kToken;
  double presence_penalty = 0;
  int logprobs = -1;
  bool delegable = true;
};

std::shared_ptr<const SequenceParams> Params(const Setting& setting, uint64_t seed) {
  auto params = std::make_shared<SequenceParams>();
  params->sampling.temperature = setting.temperature;
  params->sampling.top_k = setting.top_k;
  params->sampling.top_p = setting.top_p;
  params->sampling.min_p = setting.min_p;
  params->sampling.presence_penalty = setting.presence_penalty;
  params->key.seed = seed;
  params->rule = setting.rule;
  params->prompt_length = 5;
  params->draft_top_n = 24;
  params->logprobs = setting.logprobs;
  return params;
}

std::unique_ptr<Worker> Start(bool device, std::unique_ptr<Sampler> sampler) {
  RunnerOptions options;
  options.model_dir = kModel;
  options.dtype = "float32";
  options.threads = 1;
  options.kv_blocks = 128;
  options.block_size = 4;
  options.max_batch_rows = 96;
  absl::StatusOr<std::unique_ptr<Runner>> runner =
      device ? Runner::Load(options, testing::HostDevice(kTeam)) : Runner::Load(options);
  EXPECT_TRUE(runner.ok()) << runner.status();
  return std::make_unique<Worker>(*std::move(runner), std::move(sampler),
                                  WorkerOptions{.max_batch_rows = 96, .check_invariants = true},
                                  Worker::Hooks{});
}

// The content of an answer.
struct Reply {
  absl::Status status;
  int num_computed = 0;
  Proposal proposal;
  std::optional<Verdict> verdict;
  size_t logprobs = 0;
};

std::future<Reply> Send(Worker& worker, WorkItem item) {
  auto promise = std::make_shared<std::promise<Reply>>();
  item.answer = [promise](const Answer& answer) {
    Reply reply{answer.status, answer.num_computed, answer.proposal, std::nullopt, answer.logprobs.size()};
    if (answer.verdict != nullptr) reply.verdict = *answer.verdict;
    promise->set_value(std::move(reply));
  };
  worker.Submit(std::move(item));
  return promise->get_future();
}

WorkItem Item(uint64_t sequence, uint64_t round, std::span<const TokenId> tokens, int base,
              std::shared_ptr<const SequenceParams> params) {
  WorkItem item;
  item.id = {sequence, 7};
  item.round = round;
  item.base = static_cast<uint32_t>(base);
  item.tokens.assign(tokens.begin() + base, tokens.end());
  item.prefix_hash = PrefixHash(tokens.first(base));
  item.params_hash = 1 + sequence;
  item.params = std::move(params);
  return item;
}

void ExpectSame(const Reply& host, const Reply& device) {
  ASSERT_TRUE(host.status.ok()) << host.status;
  ASSERT_TRUE(device.status.ok()) << device.status;
  EXPECT_EQ(host.num_computed, device.num_computed);
  EXPECT_EQ(host.logprobs, device.logprobs);
  ASSERT_EQ(host.proposal.size(), device.proposal.size());
  for (size_t i = 0; i < host.proposal.size(); ++i) {
    EXPECT_EQ(host.proposal[i].token, device.proposal[i].token);
    EXPECT_EQ(host.proposal[i].parent, device.proposal[i].parent);
    EXPECT_EQ(host.proposal[i].q.form, device.proposal[i].q.form);
    EXPECT_EQ(host.proposal[i].q.ids, device.proposal[i].q.ids);
    EXPECT_EQ(host.proposal[i].q.weights, device.proposal[i].q.weights);
    EXPECT_EQ(host.proposal[i].q.total, device.proposal[i].q.total);
  }
  ASSERT_EQ(host.verdict.has_value(), device.verdict.has_value());
  if (!host.verdict) return;
  EXPECT_EQ(host.verdict->path, device.verdict->path);
  EXPECT_EQ(host.verdict->judged, device.verdict->judged);
  EXPECT_EQ(host.verdict->token, device.verdict->token);
  EXPECT_EQ(host.verdict->kind, device.verdict->kind);
  EXPECT_EQ(host.verdict->empty_residual, device.verdict->empty_residual);
  EXPECT_DOUBLE_EQ(host.verdict->expected_accepted, device.verdict->expected_accepted);
  EXPECT_DOUBLE_EQ(host.verdict->expected_variance, device.verdict->expected_variance);
  EXPECT_DOUBLE_EQ(host.verdict->surprisal, device.verdict->surprisal);
  EXPECT_DOUBLE_EQ(host.verdict->entropy, device.verdict->entropy);
}

class DeviceWorkerTest : public ::testing::TestWithParam<Setting> {};

// Three concurrent sequences of different length and K, over several rounds: the prompts are cut into chunks,
// drafts end at different times, and rejected tokens leave the cache.
TEST_P(DeviceWorkerTest, SaysWhatTheHostSays) {
  const Setting& setting = GetParam();
  EXPECT_EQ(cuda::CanRun({.params = Params(setting, 1).get(), .work = VerifyTask{}}, /*vocab=*/256),
            setting.delegable);
  const std::unique_ptr<Worker> drafts[] = {Start(false, std::make_unique<DraftSampler>()),
                                            Start(true, std::make_unique<DraftSampler>())};
  const std::unique_ptr<Worker> targets[] = {Start(false, std::make_unique<RejectionSampler>()),
                                             Start(true, std::make_unique<RejectionSampler>())};
  constexpr int kSequences = 3;
  std::vector<std::vector<TokenId>> texts;
  std::vector<int> drafted_cache(kSequences), target_cache(kSequences);
  for (int s = 0; s < kSequences; ++s) {
    texts.emplace_back();
    for (int i = 0; i < 5 + 60 * s; ++i) texts.back().push_back((i * 29 + s * 13 + 3) % 200);
  }
  int accepted = 0, corrected = 0;
  for (uint64_t round = 1; round <= 6; ++round) {
    std::vector<std::future<Reply>> proposals[2], verdicts[2];
    for (int s = 0; s < kSequences; ++s) {
      for (int device = 0; device < 2; ++device) {
        WorkItem item =
            Item(s, round, texts[s], drafted_cache[s], round == 1 ? Params(setting, 40 + s) : nullptr);
        item.work = ProposeWork{1 + (s + static_cast<int>(round)) % 4};
        proposals[device].push_back(Send(*drafts[device], std::move(item)));
      }
    }
    std::vector<Proposal> sent;
    for (int s = 0; s < kSequences; ++s) {
      const Reply host = proposals[0][s].get(), device = proposals[1][s].get();
      ASSERT_NO_FATAL_FAILURE(ExpectSame(host, device));
      drafted_cache[s] = host.num_computed;
      sent.push_back(host.proposal);
    }
    for (int s = 0; s < kSequences; ++s) {
      for (int device = 0; device < 2; ++device) {
        WorkItem item =
            Item(s, round, texts[s], target_cache[s], round == 1 ? Params(setting, 40 + s) : nullptr);
        item.work = VerifyWork{.proposal = sent[s]};
        verdicts[device].push_back(Send(*targets[device], std::move(item)));
      }
    }
    for (int s = 0; s < kSequences; ++s) {
      const Reply host = verdicts[0][s].get(), device = verdicts[1][s].get();
      ASSERT_NO_FATAL_FAILURE(ExpectSame(host, device));
      accepted += static_cast<int>(host.verdict->path.size());
      corrected += host.verdict->kind == Verdict::Kind::kCorrected;
      target_cache[s] = host.num_computed;
      for (int node : host.verdict->path) texts[s].push_back(sent[s][node].token);
      drafted_cache[s] = std::min(drafted_cache[s], static_cast<int>(texts[s].size()));
      texts[s].push_back(host.verdict->token);
    }
  }
  EXPECT_GT(accepted, 0);
  // Draft and target are the same model. What was drawn from a q of 24 tokens is more likely there than in p.
  const bool same = setting.temperature == 0 || setting.rule == Rule::kCoupled || setting.top_k > 0;
  EXPECT_EQ(corrected == 0, same) << corrected;
}

INSTANTIATE_TEST_SUITE_P(
    Settings, DeviceWorkerTest,
    ::testing::Values(Setting{.name = "Greedy", .temperature = 0}, Setting{.name = "Plain"},
                      Setting{.name = "Hot", .temperature = 1.7, .min_p = .01},
                      Setting{.name = "TopK", .top_k = 12},
                      Setting{.name = "TopP", .temperature = .8, .top_k = 40, .top_p = .9},
                      Setting{.name = "Coupled", .rule = Rule::kCoupled},
                      Setting{.name = "Block", .rule = Rule::kBlock, .delegable = false},
                      Setting{.name = "Penalty", .presence_penalty = .5, .delegable = false},
                      Setting{.name = "LogProbabilities", .logprobs = 2, .delegable = false}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace outrider
