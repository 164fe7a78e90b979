// Compares a worker that runs device tasks with one that decides on the host.
#pragma once

#include <gmock/gmock.h>

#include <functional>
#include <future>

#include "common/engine/cuda/decide_convert.h"
#include "common/engine/worker.h"
#include "common/kv/prefix_hash.h"
#include "draft_service/draft_sampler.h"
#include "target_service/rejection_sampler.h"

namespace outrider::testing {

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
  bool trees = false;  // every second sequence drafts trees, which the host decides
};

inline std::shared_ptr<const SequenceParams> Params(const Setting& setting, uint64_t seed) {
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

inline constexpr char kDeviceModel[] = "tests/data/engine/gqa3-sharded";

inline RunnerOptions DeviceOptions() {
  RunnerOptions options;
  options.model_dir = kDeviceModel;
  options.dtype = "float32";
  options.threads = 1;
  options.kv_blocks = 128;
  options.block_size = 4;
  options.max_batch_rows = 96;
  return options;
}

// A worker with the model that `load` loads.
inline std::unique_ptr<Worker> StartDeviceWorker(
    std::unique_ptr<Sampler> sampler,
    const std::function<absl::StatusOr<std::unique_ptr<Runner>>(const RunnerOptions&)>& load) {
  absl::StatusOr<std::unique_ptr<Runner>> runner = load(DeviceOptions());
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

inline std::future<Reply> Send(Worker& worker, WorkItem item) {
  auto promise = std::make_shared<std::promise<Reply>>();
  item.answer = [promise](const Answer& answer) {
    Reply reply{answer.status, answer.num_computed, answer.proposal, std::nullopt, answer.logprobs.size()};
    if (answer.verdict != nullptr) reply.verdict = *answer.verdict;
    promise->set_value(std::move(reply));
  };
  worker.Submit(std::move(item));
  return promise->get_future();
}

inline WorkItem Item(uint64_t sequence, uint64_t round, std::span<const TokenId> tokens, int base,
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

inline void ExpectSame(const Reply& host, const Reply& device) {
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

struct Counts {
  int accepted = 0;   // tokens
  int corrected = 0;  // rounds
};
using StartWorker = std::function<std::unique_ptr<Worker>(bool device, std::unique_ptr<Sampler> sampler)>;

// Concurrent sequences of different length and K, over several rounds: the prompts are cut into chunks,
// drafts end at different times, rejected tokens leave the cache, and accepted ones of trees move in it. Both
// workers must have the same logits to the bit.
inline Counts ExpectWhatTheHostSays(const Setting& setting, const StartWorker& start) {
  constexpr int kSequences = 3;
  EXPECT_EQ(cuda::CanRun({.params = Params(setting, 1).get(), .work = VerifyTask{}}, {.vocab_size = 256}),
            setting.delegable);
  const std::unique_ptr<Worker> drafts[] = {start(false, std::make_unique<DraftSampler>()),
                                            start(true, std::make_unique<DraftSampler>())};
  const std::unique_ptr<Worker> targets[] = {start(false, std::make_unique<RejectionSampler>()),
                                             start(true, std::make_unique<RejectionSampler>())};
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
        ProposeWork work{1 + (s + static_cast<int>(round)) % 4};
        if (setting.trees && s % 2 == 1) work.tree = Branching{{2, 2, 1}};
        item.work = work;
        proposals[device].push_back(Send(*drafts[device], std::move(item)));
      }
    }
    std::vector<Proposal> sent;
    for (int s = 0; s < kSequences; ++s) {
      const Reply host = proposals[0][s].get(), device = proposals[1][s].get();
      ExpectSame(host, device);
      if (::testing::Test::HasFatalFailure()) return {};
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
      ExpectSame(host, device);
      if (::testing::Test::HasFatalFailure()) return {};
      accepted += static_cast<int>(host.verdict->path.size());
      corrected += host.verdict->kind == Verdict::Kind::kCorrected;
      target_cache[s] = host.num_computed;
      for (int node : host.verdict->path) texts[s].push_back(sent[s][node].token);
      drafted_cache[s] = std::min(drafted_cache[s], static_cast<int>(texts[s].size()));
      texts[s].push_back(host.verdict->token);
    }
  }
  return {accepted, corrected};
}

inline const auto& Settings() {
  static const auto& settings =
      *new std::vector<Setting>{Setting{.name = "Greedy", .temperature = 0},
                                Setting{.name = "Plain"},
                                Setting{.name = "Hot", .temperature = 1.7, .min_p = .01},
                                Setting{.name = "TopK", .top_k = 12},
                                Setting{.name = "TopP", .temperature = .8, .top_k = 40, .top_p = .9},
                                Setting{.name = "Coupled", .rule = Rule::kCoupled},
                                Setting{.name = "Block", .rule = Rule::kBlock, .delegable = false},
                                Setting{.name = "Penalty", .presence_penalty = .5, .delegable = false},
                                Setting{.name = "LogProbabilities", .logprobs = 2, .delegable = false},
                                Setting{.name = "Trees", .trees = true},
                                Setting{.name = "GreedyTrees", .temperature = 0, .trees = true}};
  return settings;
}

}  // namespace outrider::testing
