// What a worker refuses while its engine is busy or ends.
#include <gmock/gmock.h>

#include <atomic>
#include <string>
#include <vector>

#include "changed_model.h"
#include "common/spec/status.h"
#include "held_sampler.h"

namespace outrider {
namespace {

using testing::FirstItem;
using testing::Hold;
using testing::SendShort;
using testing::ShortReply;

class WorkerLimitsTest : public ::testing::Test {
 protected:
  // A worker whose engine hangs with the item of sequence 1, whose answer is `first_`.
  void Start(SequenceStoreOptions options = {}) {
    worker_ = testing::StartHeldWorker(
        hold_, options,
        {.on_step = nullptr, .on_state = nullptr, .on_items = [this](int more) { items_ += more; }});
    first_ = SendShort(*worker_, FirstItem(1));
    hold_->AwaitReached();
  }
  void TearDown() override { hold_->LetGo(); }

  static bool Answered(const std::future<ShortReply>& reply) {
    return reply.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }

  std::atomic<int> items_ = 0;  // as the metrics count them
  const std::shared_ptr<Hold> hold_ = std::make_shared<Hold>();
  std::unique_ptr<Worker> worker_;
  std::future<ShortReply> first_;
};

TEST_F(WorkerLimitsTest, RefusesAtOnceWhatComesWhenTooManyItemsWait) {
  Start({.max_sequences = 2});
  std::vector<std::future<ShortReply>> waiting;
  for (uint64_t id = 2; id < 10; ++id) waiting.push_back(SendShort(*worker_, FirstItem(id)));
  EXPECT_FALSE(Answered(waiting.back())) << "four times the sequences may wait";
  EXPECT_EQ(items_, 9) << "they count from when they came";
  WorkItem more = FirstItem(1);
  more.base = 2;
  std::future<ShortReply> refused = SendShort(*worker_, std::move(more));
  ASSERT_TRUE(Answered(refused)) << "the engine hangs";
  const ShortReply reply = refused.get();
  EXPECT_EQ(reply.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(reply.status), "SERVER_BUSY");
  EXPECT_EQ(reply.num_computed, 2) << "nothing was lost";
  EXPECT_EQ(items_, 9);

  hold_->LetGo();
  EXPECT_TRUE(first_.get().status.ok());
  for (std::future<ShortReply>& answer : waiting) answer.get();
  EXPECT_TRUE(SendShort(*worker_, FirstItem(1)).get().status.ok()) << "it takes items again";
  worker_->AwaitIdle(absl::InfiniteFuture());
  EXPECT_EQ(items_, 0);
}

TEST_F(WorkerLimitsTest, TheAnswersOfAStepAreHeldTogether) {
  std::vector<std::string> events;  // on the engine thread
  CommandSource source{.poll = nullptr,
                       .wake = nullptr,
                       .hold_answers = [&] { events.push_back("hold"); },
                       .release_answers = [&] { events.push_back("release"); }};
  worker_ = testing::StartHeldWorker(hold_, {}, {}, std::move(source));
  for (uint64_t id = 1; id <= 3; ++id) {
    WorkItem item = FirstItem(id);
    item.answer = [&](const Answer& /*answer*/) { events.push_back("answer"); };
    worker_->Submit(std::move(item));
    if (id == 1) hold_->AwaitReached();
  }
  hold_->LetGo();
  worker_->AwaitIdle(absl::InfiniteFuture());
  EXPECT_THAT(events,
              ::testing::ElementsAre("hold", "answer", "release", "hold", "answer", "answer", "release"));
}

TEST_F(WorkerLimitsTest, ACancelledItemIsNeverAnsweredAndItsSequenceIsServedAgain) {
  Start();
  std::future<ShortReply> cancelled = SendShort(*worker_, FirstItem(2)),
                          other = SendShort(*worker_, FirstItem(3));
  worker_->Cancel(FirstItem(2).id, 1);
  worker_->Cancel(FirstItem(3).id, 2);  // another round than the one that waits
  WorkItem next = FirstItem(2);
  next.round = 2;
  std::future<ShortReply> later = SendShort(*worker_, std::move(next));
  hold_->LetGo();
  EXPECT_TRUE(later.get().status.ok());
  EXPECT_TRUE(other.get().status.ok());
  // The promise of its answer is gone.
  EXPECT_THROW(cancelled.get(), std::future_error);
}

TEST_F(WorkerLimitsTest, RefusesRepetitionsOfAnItemInProgressBeyondSixteen) {
  Start();
  // The engine takes all of them before its next step.
  std::vector<std::future<ShortReply>> repeated;
  for (int i = 0; i < 20; ++i) repeated.push_back(SendShort(*worker_, FirstItem(2)));
  hold_->LetGo();
  int refused = 0;
  for (std::future<ShortReply>& reply : repeated) {
    const absl::Status status = reply.get().status;
    if (status.ok()) continue;
    ++refused;
    EXPECT_EQ(ReasonOf(status), "SERVER_BUSY");
  }
  EXPECT_EQ(refused, 4);
}

TEST_F(WorkerLimitsTest, FinishesWhatItHasAndTakesNothingNewWhenItDrains) {
  Start();
  std::future<ShortReply> waiting = SendShort(*worker_, FirstItem(2));
  worker_->Drain();
  std::future<ShortReply> late = SendShort(*worker_, FirstItem(3));
  ASSERT_TRUE(Answered(late));
  const absl::Status status = late.get().status;
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(status), "DRAINING");
  bool told_again = false;
  WorkItem again = FirstItem(3);
  again.answer = [&](const Answer& /*answer*/) { told_again = true; };
  worker_->Submit(std::move(again));
  EXPECT_FALSE(told_again) << "a sender that tries again at once would spin";

  hold_->LetGo();
  worker_->AwaitIdle(absl::InfiniteFuture());
  ASSERT_TRUE(Answered(first_) && Answered(waiting));
  EXPECT_TRUE(first_.get().status.ok());
  EXPECT_TRUE(waiting.get().status.ok());
}

TEST_F(WorkerLimitsTest, MakesNoProgressWhileItsEngineHangs) {
  Start();
  const Worker::Progress before = worker_->progress();
  EXPECT_TRUE(before.busy);
  SendShort(*worker_, FirstItem(2));
  EXPECT_EQ(worker_->progress().iterations, before.iterations);
  hold_->LetGo();
  first_.get();
  worker_->AwaitIdle(absl::InfiniteFuture());
  EXPECT_FALSE(worker_->progress().busy);
  EXPECT_GT(worker_->progress().iterations, before.iterations);
}

TEST_F(WorkerLimitsTest, ASequenceThatWasJustUsedKeepsItsPlace) {
  hold_->LetGo();
  Start({.max_sequences = 2, .abandoned_after = absl::Hours(1)});
  EXPECT_TRUE(first_.get().status.ok());
  EXPECT_TRUE(SendShort(*worker_, FirstItem(2)).get().status.ok());
  const absl::Status refused = SendShort(*worker_, FirstItem(3)).get().status;
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(refused), "SEQUENCES_EXHAUSTED");
  worker_->Release(FirstItem(1).id);
  EXPECT_TRUE(SendShort(*worker_, FirstItem(3)).get().status.ok());
}

// What on_failure is told when a model fails with this status.
class WorkerFailureTest : public ::testing::TestWithParam<absl::Status> {};

INSTANTIATE_TEST_SUITE_P(Statuses, WorkerFailureTest,
                         ::testing::Values(absl::InternalError("lost"),
                                           absl::ResourceExhaustedError("too large"),
                                           absl::InvalidArgumentError("a bug")),
                         [](const auto& info) { return absl::StatusCodeToString(info.param.code()); });

TEST_P(WorkerFailureTest, OnlyADeviceThatIsLostIsReportedAsLost) {
  absl::Status failing = GetParam();
  std::vector<absl::Status> lost;
  RunnerOptions load;
  load.model_dir = "tests/data/engine/mha-float32";
  load.kv_blocks = 64;
  auto runner =
      Runner::Load(load, testing::ChangedBackend([&](LogitsView) { return std::exchange(failing, {}); }));
  ASSERT_TRUE(runner.ok()) << runner.status();
  const auto hold = std::make_shared<Hold>();
  hold->LetGo();
  Worker worker(*std::move(runner), std::make_unique<testing::HeldSampler>(hold), {},
                {.on_step = nullptr,
                 .on_state = nullptr,
                 .on_items = nullptr,
                 .on_failure = [&](const absl::Status& status) { lost.push_back(status); }});
  EXPECT_EQ(SendShort(worker, FirstItem(1)).get().status.code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(SendShort(worker, FirstItem(2)).get().status.ok()) << "the model is still there";
  EXPECT_EQ(lost.size(), absl::IsInternal(GetParam()) ? 1u : 0u);
}

}  // namespace
}  // namespace outrider
