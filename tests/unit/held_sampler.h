// A target's sampler that can be made to hang, and a worker with it.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "common/engine/worker.h"
#include "common/kv/prefix_hash.h"
#include "target_service/rejection_sampler.h"

namespace outrider::testing {

// Holds the engine thread in Sample until it is let go. Thread-safe; shared by the sampler and the test.
class Hold {
 public:
  // Called by the sampler.
  void Pass() {
    std::unique_lock lock(mutex_);
    reached_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
  }
  // Waits until the engine thread hangs.
  void AwaitReached() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return reached_; });
  }
  void LetGo() {
    std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool reached_ = false;
  bool open_ = false;
};

class HeldSampler final : public Sampler {
 public:
  explicit HeldSampler(std::shared_ptr<Hold> hold) : hold_(std::move(hold)) {}

  void Begin(SequenceState& sequence) override { target_.Begin(sequence); }
  void Score(SequenceState& sequence, int first, const LogitsView& rows) override {
    target_.Score(sequence, first, rows);
  }
  absl::StatusOr<bool> Sample(SequenceState& sequence, const LogitsView& rows) override {
    hold_->Pass();
    return target_.Sample(sequence, rows);
  }
  std::optional<DeviceTask> MakeDeviceTask(const SequenceState& /*sequence*/) const override { return {}; }
  void TakeDeviceResult(SequenceState& /*sequence*/, DeviceTask& /*task*/) override {}
  std::optional<absl::Status> OnDeadline(SequenceState& sequence) override {
    return target_.OnDeadline(sequence);
  }

 private:
  const std::shared_ptr<Hold> hold_;
  RejectionSampler target_;
};

inline std::unique_ptr<Worker> StartHeldWorker(std::shared_ptr<Hold> hold, SequenceStoreOptions sequences,
                                               Worker::Hooks hooks = {}, CommandSource source = {}) {
  RunnerOptions load;
  load.model_dir = "tests/data/engine/mha-float32";
  load.dtype = "float32";
  load.threads = 1;
  load.kv_blocks = 64;
  absl::StatusOr<std::unique_ptr<Runner>> runner = Runner::Load(load);
  EXPECT_TRUE(runner.ok()) << runner.status();
  return std::make_unique<Worker>(*std::move(runner), std::make_unique<HeldSampler>(std::move(hold)),
                                  WorkerOptions{.sequences = sequences, .check_invariants = true},
                                  std::move(hooks), std::move(source));
}

// The first item of a sequence: a verification of its prompt, without a proposal.
inline WorkItem FirstItem(uint64_t id) {
  WorkItem item;
  item.id = {id, 7};
  item.round = 1;
  item.tokens = {5, 6, 7};
  item.prefix_hash = PrefixHash({});
  item.params_hash = 1;
  auto params = std::make_shared<SequenceParams>();
  params->sampling.temperature = 0;
  params->prompt_length = 3;
  item.params = std::move(params);
  item.work = VerifyWork{};
  return item;
}

struct ShortReply {
  absl::Status status;
  int num_computed = 0;
};

inline std::future<ShortReply> SendShort(Worker& worker, WorkItem item) {
  auto promise = std::make_shared<std::promise<ShortReply>>();
  item.answer = [promise](const Answer& answer) { promise->set_value({answer.status, answer.num_computed}); };
  worker.Submit(std::move(item));
  return promise->get_future();
}

}  // namespace outrider::testing
