// Tasks that the engine on libtorch decides where the logits are, with the source of the GPU's kernels on the
// host.
#include "common/engine/self_test.h"
#include "common/engine/torch/cpu_runner.h"
#include "common/engine/torch/torch_model.h"
#include "device_worker_testing.h"
#include "host_kernels.h"

namespace outrider::testing {
namespace {

constexpr int kTeam = 3;
constexpr int kVocab = 256;

class HostDecisions final : public libtorch::DecisionKernels {
 public:
  void Shape(float* logits, int vocab, int rows, const cuda::ShapeParams* params,
             cuda::ShapedRow* shaped) override {
    HostShape(kTeam, logits, vocab, rows, params, shaped);
  }
  void Propose(const float* weights, int vocab, int rows, const cuda::ShapedRow* shaped,
               const cuda::ProposeInput* inputs, int step, cuda::ProposeOutput* outputs, int32_t* q_ids,
               float* q_weights, int32_t* next_tokens) override {
    HostPropose(kTeam, weights, vocab, rows, shaped, inputs, step, outputs, q_ids, q_weights, next_tokens);
  }
  void Verify(const float* weights, int vocab, int sequences, int /*max_drafted*/,
              const cuda::ShapedRow* shaped, const cuda::VerifyInput* inputs,
              const cuda::DraftedToken* drafted, const int32_t* q_ids, const float* q_weights, int32_t* races,
              cuda::VerifyOutput* outputs) override {
    HostVerify(kTeam, weights, vocab, sequences, shaped, inputs, drafted, q_ids, q_weights, races, outputs);
  }
};

// A CPU that decides itself, and whose steps are padded as a GPU's are; and captured, unless they are
// observed.
class DecidingRunner final : public libtorch::CpuRunner {
 public:
  DecidingRunner(bool pads, bool observed) : pads_(pads), observed_(observed) {}

  bool PrefersFewShapes() const override { return pads_; }
  at::Tensor Compute(const libtorch::Step& step, Forward forward) override {
    EXPECT_FALSE(step.is_decode && observed_);
    return CpuRunner::Compute(step, forward);
  }
  libtorch::DecisionKernels* decisions() override { return &decisions_; }

 private:
  const bool pads_, observed_;
  HostDecisions decisions_;
};

class TorchBackend final : public Backend {
 public:
  TorchBackend(bool decides, bool pads) : decides_(decides), pads_(pads) {}

  absl::Status Check(const RunnerOptions& /*options*/) const override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<Model>> Load(const DecoderSpec& spec, const TensorSource& weights,
                                              const RunnerOptions& options,
                                              ThreadPool& /*threads*/) const override {
    if (!decides_) return libtorch::TorchModel::Create(spec, weights, std::nullopt, options);
    return libtorch::TorchModel::Create(
        spec, weights, std::make_unique<DecidingRunner>(pads_, options.observe != nullptr), options);
  }

 private:
  const bool decides_, pads_;
};

std::unique_ptr<Worker> Start(bool device, std::unique_ptr<Sampler> sampler) {
  return StartDeviceWorker(std::move(sampler), [device](const RunnerOptions& options) {
    return Runner::Load(options, TorchBackend(device, /*pads=*/false));
  });
}

class TorchDecides : public ::testing::TestWithParam<Setting> {};

// One sequence: with more, the shapes of steps would depend on when items arrive, and logits on them by
// rounding.
TEST_P(TorchDecides, WhatTheHostDoes) {
  EXPECT_GT(ExpectWhatTheHostSays(GetParam(), /*sequences=*/1, Start).accepted, 0);
}

INSTANTIATE_TEST_SUITE_P(Settings, TorchDecides, ::testing::ValuesIn(Settings()),
                         [](const auto& info) { return std::string(info.param.name); });

// Its stages, rows and decisions, in steps as they are and in padded ones.
TEST(TorchSelfTest, PassesWhereTheDeviceDecides) {
  RunnerOptions options = DeviceOptions();
  options.engine = "torch";
  ThreadPool threads(1);
  for (const bool pads : {false, true}) {
    std::string last;
    const absl::StatusOr<bool> passed =
        SelfTestInFull(TorchBackend(/*decides=*/true, pads), ReadModelConfig(kDeviceModel)->decoder, options,
                       threads, [&](absl::string_view line) { last = std::string(line); });
    EXPECT_TRUE(passed.ok() && *passed) << passed.status() << ", " << last;
    EXPECT_EQ(last, "ok      decisions  12 proposals and 12 verdicts, twice each: those of the host");
  }
}

// Steps with several tasks, and sequences between them whose logits are the host's.
class TorchTasks : public ::testing::TestWithParam<bool> {
 protected:
  static constexpr int kSequences = 4;

  TorchTasks() {
    runner_ = Runner::Load(DeviceOptions(), TorchBackend(/*decides=*/true, /*pads=*/GetParam())).value();
    for (int s = 0; s < kSequences; ++s) {
      params_.push_back(Params({.name = "", .rule = s == 1 ? Rule::kCoupled : Rule::kToken}, 7 + s));
      for (int i = 0; i < 12; ++i) tokens_[s].push_back((i * 29 + s * 13 + 3) % kVocab);
      for (BlockId b = 0; b < 8; ++b) blocks_[s].push_back(8 * s + b);
    }
  }

  // The sequence's tokens from 8 on, after its first 8 were read.
  SequenceRows Rows(int s, int count, int logit_rows, DeviceTask* task) {
    const absl::Span<const TokenId> all = tokens_[s];
    const SequenceRows prompt = {all.first(8), 0, blocks_[s], 0};
    EXPECT_TRUE(runner_->Forward({&prompt, 1}).ok());
    return {all.subspan(8, static_cast<size_t>(count)), 8, blocks_[s], logit_rows, task};
  }
  DeviceTask Task(int s, std::variant<ProposeTask, VerifyTask> work, uint64_t round_start) {
    return {.params = params_[s].get(), .round_start = round_start, .work = std::move(work)};
  }

  std::unique_ptr<Runner> runner_;
  std::vector<std::shared_ptr<const SequenceParams>> params_;
  std::vector<TokenId> tokens_[kSequences];
  std::vector<BlockId> blocks_[kSequences];
};

INSTANTIATE_TEST_SUITE_P(Steps, TorchTasks, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Padded" : "AsTheyAre"; });

TEST_P(TorchTasks, ProposalsInOneStepAreThoseOfEachAlone) {
  const int lengths[kSequences] = {3, 0, 1, 5};  // sequence 1 has no task
  std::vector<DeviceTask> together, alone;
  for (int s = 0; s < kSequences; ++s) {
    together.push_back(Task(s, ProposeTask{lengths[s]}, 9));
    alone.push_back(Task(s, ProposeTask{lengths[s]}, 9));
  }
  std::vector<SequenceRows> batch;
  for (int s = 0; s < kSequences; ++s)
    batch.push_back(Rows(s, 1, 1, lengths[s] > 0 ? &together[s] : nullptr));
  const auto view = runner_->Forward(batch);
  ASSERT_TRUE(view.ok()) << view.status();
  ASSERT_EQ(view->rows, 1);
  const std::vector<float> of_host(view->row(0).begin(), view->row(0).end());
  for (int s = 0; s < kSequences; ++s) {
    const SequenceRows one = Rows(s, 1, 1, lengths[s] > 0 ? &alone[s] : nullptr);
    const auto single = runner_->Forward({&one, 1});
    ASSERT_TRUE(single.ok()) << single.status();
    if (lengths[s] == 0) {
      for (int x = 0; x < kVocab; ++x) ASSERT_NEAR(of_host[x], single->row(0)[x], 1e-4) << x;
      continue;
    }
    const Proposal& expected = std::get<ProposeTask>(alone[s].work).proposal;
    const Proposal& found = std::get<ProposeTask>(together[s].work).proposal;
    ASSERT_EQ(found.size(), static_cast<size_t>(lengths[s]));
    ASSERT_EQ(expected.size(), found.size());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].token, expected[i].token) << "sequence " << s << ", token " << i;
      EXPECT_EQ(found[i].q.ids, expected[i].q.ids);
    }
  }
}

TEST_P(TorchTasks, VerdictsInOneStepAreThoseOfEachAlone) {
  const size_t drafted = 3;
  std::vector<Proposal> drafts(kSequences);
  for (int s = 0; s < kSequences; ++s) {
    for (size_t i = 0; i < drafted; ++i) {
      Distribution q;
      q.form = s == 1 ? Distribution::Form::kAbsent : Distribution::Form::kPointMass;
      const TokenId token = tokens_[s][9 + i];
      ASSERT_TRUE(Prepare(q, token, kVocab, s == 1).ok());
      AppendToChain(token, std::move(q), drafts[s]);
    }
  }
  const auto verify = [&](int s) { return Task(s, VerifyTask{.draft = drafts[s]}, 9); };
  std::vector<DeviceTask> together = {verify(0), verify(1), verify(2), verify(3)}, alone = together;
  std::vector<SequenceRows> batch;
  for (int s = 0; s < kSequences; ++s) batch.push_back(Rows(s, 4, 4, s == 2 ? nullptr : &together[s]));
  const auto view = runner_->Forward(batch);
  ASSERT_TRUE(view.ok()) << view.status();
  ASSERT_EQ(view->rows, 4);
  for (int s = 0; s < kSequences; ++s) {
    if (s == 2) continue;
    const SequenceRows one = Rows(s, 4, 4, &alone[s]);
    ASSERT_TRUE(runner_->Forward({&one, 1}).ok());
    ASSERT_TRUE(together[s].status.ok()) << together[s].status;
    const Verdict& expected = std::get<VerifyTask>(alone[s].work).verdict;
    const Verdict& found = std::get<VerifyTask>(together[s].work).verdict;
    EXPECT_EQ(found.path, expected.path) << s;
    EXPECT_EQ(found.token, expected.token) << s;
    EXPECT_EQ(found.kind, expected.kind) << s;
  }
}

}  // namespace
}  // namespace outrider::testing
