// The full self-test on a device that the host simulates: its output, and that it names what is wrong.
#include <gmock/gmock.h>

#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "changed_model.h"
#include "common/engine/runner_options.h"
#include "common/engine/self_test.h"
#include "device_worker_testing.h"
#include "host_device_model.h"

namespace outrider::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int kTeam = 3;

// A decoder with the heads and the window of a real model's layers, and few tokens.
DecoderConfig Spec() {
  DecoderConfig spec = ReadModelConfig(kDeviceModel)->decoder;
  spec.heads = 24;
  spec.kv_heads = 8;
  spec.head_dim = 64;
  spec.sliding_window = 4096;
  spec.slides.assign(static_cast<size_t>(spec.layers), true);
  return spec;
}

// A model with something wrong.
class WrongModel : public ChangedModel {
 public:
  explicit WrongModel(std::unique_ptr<Model> model)
      : ChangedModel(std::move(model), [](LogitsView /*logits*/) { return absl::OkStatus(); }) {}
};

// The simulated device, with its models and options changed by these functions.
class ChangedDevice final : public Backend {
 public:
  using Change = std::function<std::unique_ptr<Model>(std::unique_ptr<Model>)>;
  using ChangeOptions = std::function<void(RunnerOptions&)>;

  explicit ChangedDevice(
      Change change, ChangeOptions options = [](RunnerOptions&) {})
      : change_(std::move(change)), change_options_(std::move(options)) {}

  absl::Status Check(const RunnerOptions& /*options*/) const override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<Model>> Load(const DecoderConfig& spec, const TensorSource& weights,
                                              const RunnerOptions& options,
                                              ThreadPool& threads) const override {
    RunnerOptions changed = options;
    change_options_(changed);
    absl::StatusOr<std::unique_ptr<Model>> model = HostDevice(kTeam).Load(spec, weights, changed, threads);
    if (!model.ok()) return model.status();
    return change_(*std::move(model));
  }

 private:
  const Change change_;
  const ChangeOptions change_options_;
};

std::vector<std::string> Lines(const Backend& backend, bool passes) {
  RunnerOptions options;
  options.device = "a device";
  options.dtype = "float32";
  ThreadPool threads(2);
  std::vector<std::string> lines;
  const absl::StatusOr<bool> passed = SelfTestInFull(
      backend, Spec(), options, threads, [&](absl::string_view line) { lines.emplace_back(line); });
  EXPECT_TRUE(passed.ok()) << passed.status();
  EXPECT_EQ(passed.value_or(!passes), passes);
  return lines;
}

// The line of the check that failed, the last one.
std::string Failure(const Backend& backend) { return Lines(backend, /*passes=*/false).back(); }

// Wraps the device's model in one of class T.
template <class T>
std::unique_ptr<Model> Make(std::unique_ptr<Model> model) {
  return std::make_unique<T>(std::move(model));
}

TEST(SelfTestInFull, OfADeviceThatDecidesSaysALineForEachCheck) {
  EXPECT_THAT(
      Lines(HostDevice(kTeam), /*passes=*/true),
      ElementsAre(AllOf(HasSubstr("device a device, dtype float32"), HasSubstr("3 query heads of 64")),
                  StartsWith("ok      stages     all are the CPU's: "),
                  StartsWith("ok      logits     logits differ from the CPU's by 0 of"),
                  "ok      rows       alone, together, in chunks, beside others, in copied blocks: the "
                  "same bits; as a tree: the same bits",
                  "ok      decisions  12 proposals and 12 verdicts, twice each: those of the host"));
}

// The activation and all stages after it are off, as if its kernel were wrong.
TEST(SelfTestInFull, AWrongStageIsNamedBeforeWhatFollowsFromIt) {
  const auto doubles = [](RunnerOptions& options) {
    if (!options.observe) return;
    options.observe = [observe = options.observe](const StageOutput& output) {
      std::vector<float> values(output.values.begin(), output.values.end());
      const bool wrong = output.layer == 1 || output.name == kActivated || output.name == kAfterMlp;
      for (float& x : values) x *= wrong ? 2 : 1;
      observe({output.name, output.layer, output.columns, values});
    };
  };
  EXPECT_THAT(
      Failure(ChangedDevice(Make<WrongModel>, doubles)),
      StartsWith("FAILED  stages     layer 0, activated: after attention agrees; norm, products of gate "
                 "and up, activation; it differs by 1 of its size in 280 rows"));
}

// Right with many rows and wrong with few, as a captured step might be.
class WrongAlone final : public WrongModel {
 public:
  using WrongModel::WrongModel;
  absl::StatusOr<LogitsView> Forward(absl::Span<const SequenceRows> batch, const PassOptions& pass) override {
    absl::StatusOr<LogitsView> logits = WrongModel::Forward(batch, pass);
    if (logits.ok() && logits->rows == 1) logits->row(0)[17] *= 1.0001f;
    return logits;
  }
};

TEST(SelfTestInFull, BitsThatDependOnTheBatchAreNamed) {
  EXPECT_THAT(
      Failure(ChangedDevice(Make<WrongAlone>)),
      AllOf(StartsWith("FAILED  rows       the logits of position 250, computed token by token, differ"),
            HasSubstr("must not at all")));
}

class LosesCopies final : public WrongModel {
 public:
  using WrongModel::WrongModel;
  void CopyBlock(BlockId /*from*/, BlockId /*to*/) override {}
};

TEST(SelfTestInFull, ABlockThatIsNotCopiedIsNamed) {
  EXPECT_THAT(
      Failure(ChangedDevice(Make<LosesCopies>)),
      HasSubstr("FAILED  rows       the logits of position 32, computed with a copied block, differ"));
}

// Wrong with trees alone: a node attends to the node before its parent in the parent's place.
class OtherParents final : public WrongModel {
 public:
  using WrongModel::WrongModel;
  absl::StatusOr<LogitsView> Forward(absl::Span<const SequenceRows> batch, const PassOptions& pass) override {
    std::vector<SequenceRows> wrong(batch.begin(), batch.end());
    std::vector<int> parents;
    for (SequenceRows& sequence : wrong) {
      for (const int parent : sequence.parents) parents.push_back(parent > 0 ? parent - 1 : parent);
      sequence.parents = parents;
    }
    return WrongModel::Forward(wrong, pass);
  }
};

class LosesMoves final : public WrongModel {
 public:
  using WrongModel::WrongModel;
  void MoveSlots(absl::Span<const BlockId> /*blocks*/, absl::Span<const SlotMove> /*moves*/) override {}
};

// A little off with trees. `kClaims`: whether it claims to be invariant all the same.
template <bool kClaims>
class RoundsTrees final : public WrongModel {
 public:
  using WrongModel::WrongModel;
  bool tree_row_invariant() const override { return kClaims; }
  absl::StatusOr<LogitsView> Forward(absl::Span<const SequenceRows> batch, const PassOptions& pass) override {
    absl::StatusOr<LogitsView> logits = WrongModel::Forward(batch, pass);
    if (logits.ok() && !batch[0].parents.empty()) logits->row(3)[17] *= 1.0000002f;
    return logits;
  }
};

TEST(SelfTestInFull, WhatIsWrongWithTreesAloneIsNamed) {
  const auto differ = [](absl::string_view what) {
    return HasSubstr(absl::StrCat("FAILED  rows       the ", what, ", computed as a tree, differ"));
  };
  EXPECT_THAT(Failure(ChangedDevice(Make<OtherParents>)), differ("logits of position 266"));
  EXPECT_THAT(Failure(ChangedDevice(Make<LosesMoves>)), differ("keys and values of position 265"));
  EXPECT_THAT(Failure(ChangedDevice(Make<RoundsTrees<true>>)), differ("logits of position 266"));
  EXPECT_THAT(Lines(ChangedDevice(Make<RoundsTrees<false>>), /*passes=*/true),
              ::testing::Contains(HasSubstr("in copied blocks: the same bits; as a tree: up to rounding")));
}

// Changes the result of a task.
template <class Work, class ChangeWork>
class WrongTask final : public WrongModel {
 public:
  using WrongModel::WrongModel;
  absl::StatusOr<LogitsView> Forward(absl::Span<const SequenceRows> batch, const PassOptions& pass) override {
    absl::StatusOr<LogitsView> logits = WrongModel::Forward(batch, pass);
    for (const SequenceRows& sequence : batch) {
      Work* const work = sequence.task == nullptr ? nullptr : std::get_if<Work>(&sequence.task->work);
      if (work != nullptr) ChangeWork()(*sequence.task->params, *work);
    }
    return logits;
  }
};

// Whether the sequence is sampled with top_p.
constexpr auto kOther = [](const SequenceParams& params) { return params.sampling.top_p < 1; };

TEST(SelfTestInFull, AnotherTokenOrDistributionOfAProposalIsNamed) {
  const auto other_token = [](const SequenceParams& params, ProposeTask& task) {
    if (kOther(params)) task.proposal[0].token = 5;
  };
  EXPECT_THAT(
      Failure(ChangedDevice(Make<WrongTask<ProposeTask, decltype(other_token)>>)),
      StartsWith("FAILED  decisions  a proposal of 1 tokens with top_p .9: token 1 is 5, the host's "));
  const auto other_q = [](const SequenceParams& params, ProposeTask& task) {
    if (kOther(params)) task.proposal[0].q.weights[0] *= 1.0001f;
  };
  EXPECT_THAT(Failure(ChangedDevice(Make<WrongTask<ProposeTask, decltype(other_q)>>)),
              HasSubstr("with top_p .9: token 1 is drawn from another distribution than the host's"));
}

TEST(SelfTestInFull, AnotherVerdictIsNamed) {
  const auto other_token = [](const SequenceParams& params, VerifyTask& task) {
    if (kOther(params)) ++task.verdict.token;
  };
  EXPECT_THAT(Failure(ChangedDevice(Make<WrongTask<VerifyTask, decltype(other_token)>>)),
              AllOf(StartsWith("FAILED  decisions  a verdict of 1 tokens with top_p .9: after "),
                    HasSubstr(", the host ")));
  const auto accepts_more = [](const SequenceParams& params, VerifyTask& task) {
    if (kOther(params)) task.verdict.path.push_back(9);
  };
  EXPECT_THAT(Failure(ChangedDevice(Make<WrongTask<VerifyTask, decltype(accepts_more)>>)),
              HasSubstr("a verdict of 1 tokens with top_p .9: of "));
  const auto other_sum = [](const SequenceParams& params, VerifyTask& task) {
    if (kOther(params)) task.verdict.surprisal += 1e-6;
  };
  EXPECT_THAT(Failure(ChangedDevice(Make<WrongTask<VerifyTask, decltype(other_sum)>>)),
              HasSubstr("a verdict of 1 tokens with top_p .9: its surprisal and entropy are "));
}

}  // namespace
}  // namespace outrider::testing
