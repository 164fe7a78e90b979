// Random traffic on a worker. Whatever happens to a sequence between its rounds, its answers are those that
// it would get if it were sent whole to an idle worker.
#pragma once

#include <functional>
#include <random>

#include "common/spec/status.h"
#include "some_of.h"
#include "worker_trees_testing.h"

namespace outrider::testing {

// The allowed tokens, which are few so that paths of random trees are accepted.
inline const std::vector<TokenId>& Allowed() {
  static const auto& tokens = *new std::vector<TokenId>{3, 50, 120, 200};
  return tokens;
}

// The sizes of blocks to test; only one of them under a sanitizer.
inline std::vector<int> TrafficBlockSizes() {
  std::vector<int> sizes = {4, 1, 16};
  sizes.resize(static_cast<size_t>(SomeOf(3)));
  return sizes;
}

// How sequences are sampled; their seeds tell them apart.
using TrafficSettings = std::vector<std::shared_ptr<const SequenceParams>>;

// Counts of what happened, so that a test can check that it did.
struct Seen {
  int checked = 0;
  int wrong = 0;  // answers that differ from those for the whole sequence
  int moved = 0;  // verdicts or proposals after which a path had to be moved
  int forked = 0;
  int repeated = 0;
  int superseded = 0;
  int late = 0;
  int preempted = 0;  // items that found no room, or whose sequence had lost its cache
  int prefix_hit = 0;
  int cut = 0;  // proposals that ended early
};

class Traffic {
 public:
  using StartWorker = std::function<std::unique_ptr<Worker>(const RunnerOptions&, WorkerOptions)>;

  // `worker_` has few blocks and few rows a step. `alone_` has enough of both, and no prefix cache.
  Traffic(uint32_t seed, int block_size, TrafficSettings settings, const StartWorker& start)
      : random_(seed), settings_(std::move(settings)) {
    SequenceStoreOptions store{.max_sequences = 24, .abandoned_after = absl::ZeroDuration()};
    worker_ = start(TreeModel(280 / block_size, block_size, 40), {40, store, true});
    store.prefix_cache = false;
    alone_ = start(TreeModel(64, 16, 256), {256, store, true});
  }

  virtual ~Traffic() = default;

  Seen Run(int steps) {
    for (int step = 0; step < steps; ++step) {
      while (known_.size() < 6) Begin();
      std::vector<std::pair<size_t, WorkItem>> items;
      std::vector<std::future<TreeReply>> replies;
      for (size_t i = 0; i < known_.size(); ++i) {
        // Now and then a second round is sent before the first is answered.
        for (int more = Pick(10) == 0; more >= 0; --more) {
          items.emplace_back(i, NextItem(known_[i]));
          replies.push_back(SendTree(*worker_, items.back().second));
        }
      }
      for (size_t i = 0; i < items.size(); ++i) {
        Take(known_[items[i].first], items[i].second, replies[i].get());
      }
      std::erase_if(known_, [&](const Known& known) {
        const bool over = known.tokens.size() > 90 || Pick(25) == 0;
        if (over) worker_->Release({known.id, ~known.id});
        return over;
      });
    }
    return seen_;
  }

 protected:
  // A sequence as its coordinator knows it.
  struct Known {
    uint64_t id = 0;
    std::shared_ptr<const SequenceParams> params;
    std::vector<TokenId> tokens = {};
    int held = 0;
    uint64_t round = 0;
    std::optional<SequenceId> fork_of = {};
  };

  int Pick(int n) { return static_cast<int>(random_() % static_cast<uint32_t>(n)); }
  TokenId PickToken() { return Allowed()[static_cast<size_t>(Pick(4))]; }

  // Returns the work of the next item.
  virtual Work NextWork(const Known& known, int base) = 0;
  // Returns the parameters of the next item.
  virtual std::shared_ptr<const SequenceParams> NextParams(const Known& known) { return known.params; }
  // Returns the tokens committed from an answer's proposal or verdict, and the token after them.
  virtual std::vector<TokenId> Committed(const WorkItem& item, const TreeReply& reply) = 0;
  virtual bool IsRight(const WorkItem& item, const TreeReply& reply, const TreeReply& alone) = 0;

  std::mt19937 random_;
  const TrafficSettings settings_;
  Seen seen_;

 private:
  // Begins a sequence with the text of another, as a copy of another, or with a prompt of its own.
  void Begin() {
    Known known{.id = ++last_id_,
                .params = settings_[static_cast<size_t>(Pick(static_cast<int>(settings_.size())))]};
    if (const int how = known_.empty() ? 3 : Pick(4); how < 3) {
      const Known& origin = known_[static_cast<size_t>(Pick(static_cast<int>(known_.size())))];
      known.tokens = origin.tokens;
      if (how < 2 && origin.held > 0) {
        known.fork_of = SequenceId{origin.id, ~origin.id};
        known.held = std::max(origin.held - Pick(3), 0);
        if (Pick(3) == 0) known.params = origin.params;
      }
    } else {
      for (int i = Pick(60) + 4; i > 0; --i) known.tokens.push_back(static_cast<TokenId>(Pick(256)));
    }
    known_.push_back(std::move(known));
  }

  WorkItem NextItem(Known& known) {
    int base = std::min(known.held, static_cast<int>(known.tokens.size()) - 1);
    if (Pick(8) == 0) base = Pick(base + 1);
    if (Pick(16) == 0) base = 0;
    known.params = NextParams(known);
    WorkItem item =
        TreeItem(known.id, ++known.round, known.tokens, base, known.params, NextWork(known, base));
    item.fork_of = known.fork_of;
    if (Pick(12) == 0) item.deadline = absl::Now() + absl::Microseconds(Pick(2000));
    return item;
  }

  void Take(Known& known, const WorkItem& item, const TreeReply& reply) {
    known.fork_of.reset();
    if (!reply.status.ok()) return TakeRefusal(known, item, reply);
    Check(item, reply);
    seen_.forked += item.fork_of ? 1 : 0;
    seen_.prefix_hit += reply.prefix_hit;
    if (item.round < known.round) return;  // a later round counts
    if (Pick(6) == 0) Repeat(item, reply);
    const std::vector<TokenId> more = Committed(item, reply);
    // Drafted tokens that were not accepted are of no use.
    known.held = std::min(reply.num_computed, static_cast<int>(item.committed() + more.size()) - 1);
    known.tokens.insert(known.tokens.end(), more.begin(), more.end());
  }

  void TakeRefusal(Known& known, const WorkItem& item, const TreeReply& reply) {
    const absl::StatusCode code = reply.status.code();
    switch (code) {
      case absl::StatusCode::kAborted:
        EXPECT_EQ(ReasonOf(reply.status), "ROUND_SUPERSEDED");
        EXPECT_LT(item.round, known.round);
        ++seen_.superseded;
        break;
      case absl::StatusCode::kDeadlineExceeded:
        EXPECT_NE(item.deadline, absl::InfiniteFuture());
        ++seen_.late;
        break;
      default:
        EXPECT_TRUE(code == absl::StatusCode::kResourceExhausted || code == absl::StatusCode::kNotFound ||
                    ReasonOf(reply.status) == "BASE_BEYOND_CACHED")
            << reply.status;
        ++seen_.preempted;
    }
    known.held = code == absl::StatusCode::kNotFound ? 0 : reply.num_computed;
  }

  // Sends the same item again, which must get the same answer.
  void Repeat(const WorkItem& item, const TreeReply& reply) {
    const TreeReply again = AskTree(*worker_, item);
    ASSERT_TRUE(again.status.ok()) << again.status;
    ++seen_.repeated;
    EXPECT_EQ(again.num_computed, reply.num_computed);
    EXPECT_TRUE(BeginsWith(again.proposal, reply.proposal));
    if (reply.verdict) {
      EXPECT_TRUE(SameVerdicts(*again.verdict, *reply.verdict));
    }
  }

  void Check(const WorkItem& item, const TreeReply& reply) {
    const Known& known =
        *std::find_if(known_.begin(), known_.end(), [&](const Known& k) { return k.id == item.id.hi; });
    WorkItem whole =
        TreeItem(++last_id_, 1, std::span(known.tokens).first(item.committed()), 0, item.params, item.work);
    const SequenceId id = whole.id;
    const TreeReply alone = AskTree(*alone_, std::move(whole));
    alone_->Release(id);
    ASSERT_TRUE(alone.status.ok()) << alone.status;
    ++seen_.checked;
    seen_.cut += reply.proposal.size() < alone.proposal.size() ? 1 : 0;
    seen_.wrong += IsRight(item, reply, alone) ? 0 : 1;
  }

  std::unique_ptr<Worker> worker_, alone_;
  std::vector<Known> known_;
  uint64_t last_id_ = 0;
};

}  // namespace outrider::testing
