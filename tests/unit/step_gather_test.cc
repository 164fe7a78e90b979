#include "common/engine/step_gather.h"

#include <gmock/gmock.h>

#include <future>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "changed_model.h"
#include "common/engine/worker.h"
#include "common/kv/prefix_hash.h"
#include "target_service/rejection_sampler.h"
#include "tests/unit/store_testing.h"

namespace outrider {
namespace {

using testing::Id;

class StepGatherTest : public ::testing::Test {
 protected:
  StepGatherTest() { Teach(2, 0.1); }

  // A machine on which a step takes `fixed` and as much again as `row` for each row, in milliseconds.
  void Teach(double fixed, double row) {
    step_time_ = StepTime();
    for (int i = 0; i < 200; ++i) {
      for (const uint32_t rows : {1, 2, 4, 8, 16}) step_time_.Observe(rows, 1e-3 * (fixed + row * rows));
    }
  }
  // A step of this sequence ends, and it is away for so long.
  void Away(uint64_t id, absl::Duration time) {
    gather_.OnStep();
    gather_.OnAnswer(Id(id), 1, now_);
    now_ += time;
    gather_.OnItem(Id(id), now_);
  }
  // How long a step of four rows would wait.
  absl::Duration Wait() { return gather_.StepAt(4, step_time_, now_) - now_; }

  StepTime step_time_;
  StepGather gather_;
  absl::Time now_ = absl::FromUnixSeconds(1);
};

TEST_F(StepGatherTest, WaitsForASequenceThatReturnsSoon) {
  EXPECT_EQ(Wait(), absl::ZeroDuration()) << "none is away";
  gather_.OnAnswer(Id(1), 1, now_);
  EXPECT_EQ(Wait(), StepGather::kFirstGuess);
  gather_.OnItem(Id(1), now_);
  EXPECT_EQ(Wait(), absl::ZeroDuration()) << "it is back";
}

TEST_F(StepGatherTest, LearnsHowLongEachIsAway) {
  for (int i = 0; i < 50; ++i) {
    Away(1, absl::Microseconds(800));
    Away(2, absl::Milliseconds(30));
  }
  gather_.OnAnswer(Id(1), 1, now_);
  EXPECT_NEAR(absl::ToDoubleMicroseconds(Wait()), 800, 50);
  gather_.OnItem(Id(1), now_);
  gather_.OnAnswer(Id(2), 1, now_);
  EXPECT_EQ(Wait(), absl::ZeroDuration()) << "longer than a step";
}

TEST_F(StepGatherTest, DoesNotWaitWhereAStepSavesNothing) {
  Teach(0, 1);
  gather_.OnAnswer(Id(1), 1, now_);
  EXPECT_EQ(Wait(), absl::ZeroDuration());
}

TEST_F(StepGatherTest, DoesNotWaitForOneThatIsOverdueOrReleased) {
  gather_.OnAnswer(Id(1), 1, now_);
  now_ += 2 * StepGather::kFirstGuess;
  EXPECT_EQ(Wait(), absl::ZeroDuration());
  gather_.OnAnswer(Id(2), 1, now_);
  gather_.OnRelease(Id(2));
  EXPECT_EQ(Wait(), absl::ZeroDuration());
}

// While two groups take turns, all items are seen late.
TEST_F(StepGatherTest, AnItemThatCameDuringAStepIsNotTakenForLate) {
  for (int i = 0; i < 5; ++i) {
    gather_.OnAnswer(Id(1), 1, now_);
    gather_.OnStep();
    now_ += absl::Milliseconds(3);
    gather_.OnItem(Id(1), now_);
  }
  gather_.OnAnswer(Id(1), 1, now_);
  EXPECT_GT(Wait(), StepGather::kFirstGuess / 2);
}

TEST_F(StepGatherTest, AWaitInVainIsRemembered) {
  for (int i = 0; i < 20; ++i) {
    gather_.OnAnswer(Id(1), 1, now_);
    now_ += Wait();
    EXPECT_EQ(Wait(), absl::ZeroDuration());
    gather_.OnStep();
    now_ += absl::Milliseconds(3);
    gather_.OnItem(Id(1), now_);
  }
  gather_.OnAnswer(Id(1), 1, now_);
  EXPECT_EQ(Wait(), absl::ZeroDuration());
}

TEST_F(StepGatherTest, OneThatWasLateIsWaitedForAgainLater) {
  for (int i = 0; i < 10; ++i) Away(1, absl::Milliseconds(6));
  int steps = 0;
  for (bool waits = false; !waits && steps < 1000; ++steps) {
    gather_.OnAnswer(Id(1), 1, now_);
    waits = Wait() > absl::ZeroDuration();
    gather_.OnStep();
    now_ += absl::Milliseconds(8);
    gather_.OnItem(Id(1), now_);
  }
  EXPECT_GT(steps, 20);
  EXPECT_LT(steps, 200);
}

// A worker whose steps take long, and two sequences that decode: the second begins during a step of the
// first.
TEST(WorkerGathers, SequencesThatCameApart) {
  constexpr int kRounds = 20;
  constexpr absl::Duration kStep = absl::Milliseconds(20);
  RunnerOptions load;
  load.model_dir = "tests/data/engine/mha-float32";
  load.threads = 1;
  load.kv_blocks = 64;
  const testing::WrappingBackend slow([&](std::unique_ptr<Model> model, const DecoderConfig& /*spec*/) {
    return std::make_unique<testing::ChangedModel>(std::move(model), [&](LogitsView) {
      absl::SleepFor(kStep);
      return absl::OkStatus();
    });
  });
  std::mutex mutex;
  std::map<int, int> steps;  // by their number of sequences
  Worker worker(Runner::Load(load, slow).value(), std::make_unique<RejectionSampler>(), WorkerOptions(),
                {.on_step =
                     [&](const StepStats& step) {
                       std::lock_guard lock(mutex);
                       ++steps[step.sequences];
                     },
                 .on_state = nullptr});
  const auto decode = [&](uint64_t id) {
    std::vector<TokenId> tokens = {1, 2, 3};
    for (uint64_t round = 1; round <= kRounds; ++round) {
      const size_t base = round == 1 ? 0 : tokens.size() - 1;
      WorkItem item;
      item.id = Id(id);
      item.round = round;
      item.base = static_cast<uint32_t>(base);
      item.tokens.assign(tokens.begin() + static_cast<std::ptrdiff_t>(base), tokens.end());
      item.prefix_hash = PrefixHash(std::span(tokens).first(base));
      item.params_hash = 1;
      item.params = std::make_shared<SequenceParams>();
      item.work = VerifyWork{};
      std::promise<TokenId> next;
      item.answer = [&](const Answer& answer) {
        EXPECT_TRUE(answer.status.ok()) << answer.status;
        next.set_value(answer.verdict == nullptr ? 0 : answer.verdict->token);
      };
      worker.Submit(std::move(item));
      tokens.push_back(next.get_future().get());
      absl::SleepFor(kStep / 10);  // the coordinator works
    }
  };
  std::jthread first(decode, 1);
  absl::SleepFor(kStep / 2);
  std::jthread second(decode, 2);
  first.join();
  second.join();
  EXPECT_GT(steps[2], steps[1]);
}

}  // namespace
}  // namespace outrider
