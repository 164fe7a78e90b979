// Workers that judge or draft trees, the items that they get, and a fixture with both.
#pragma once

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/hash/hash.h"
#include "common/engine/worker.h"
#include "common/kv/prefix_hash.h"
#include "target_service/rejection_sampler.h"

namespace outrider::testing {

inline constexpr char kTreeModel[] = "tests/data/engine/mha-float32";

// The content of an answer.
struct TreeReply {
  absl::Status status;
  int num_computed = 0;
  int prefix_hit = 0;
  Proposal proposal = {};
  std::optional<Verdict> verdict = {};
  std::vector<CandidateRow> candidates = {};
  std::vector<double> logprobs = {};  // of the prompt, then of the emitted tokens
};

inline RunnerOptions TreeModel(int kv_blocks, int block_size, int max_batch_rows) {
  RunnerOptions options;
  options.model_dir = kTreeModel;
  options.dtype = "float32";
  options.threads = 1;
  options.kv_blocks = kv_blocks;
  options.block_size = block_size;
  options.max_batch_rows = max_batch_rows;
  return options;
}

inline std::future<TreeReply> SendTree(Worker& worker, WorkItem item) {
  auto promise = std::make_shared<std::promise<TreeReply>>();
  item.answer = [promise](const Answer& answer) {
    TreeReply reply{answer.status, answer.num_computed, answer.prefix_hit, answer.proposal};
    if (answer.verdict != nullptr) reply.verdict = *answer.verdict;
    reply.candidates = answer.candidates;
    for (const auto* positions : {&answer.prompt_logprobs, &answer.logprobs}) {
      for (const PositionLogProbabilities& position : *positions) {
        reply.logprobs.push_back(position.token.log_probability);
        for (const auto& top : position.top) reply.logprobs.push_back(top.log_probability);
      }
    }
    promise->set_value(std::move(reply));
  };
  worker.Submit(std::move(item));
  return promise->get_future();
}
inline TreeReply AskTree(Worker& worker, WorkItem item) { return SendTree(worker, std::move(item)).get(); }

// An item for the tokens from `base` on. The seed tells one set of parameters from another.
inline WorkItem TreeItem(uint64_t id, uint64_t round, std::span<const TokenId> all, int base,
                         std::shared_ptr<const SequenceParams> params, Work work) {
  WorkItem item;
  item.id = {id, ~id};
  item.round = round;
  item.base = static_cast<uint32_t>(base);
  item.tokens.assign(all.begin() + base, all.end());
  item.prefix_hash = PrefixHash(all.first(static_cast<size_t>(base)));
  item.params_hash = params->key.seed + 1;
  item.params = std::move(params);
  item.work = std::move(work);
  if (auto* verify = std::get_if<VerifyWork>(&item.work)) {
    for (const ProposalNode& node : verify->proposal) {
      verify->content_hash = absl::HashOf(verify->content_hash, node.token, node.parent, node.q.weights);
    }
  }
  return item;
}

inline ProposalNode Certain(TokenId token, int parent) {
  return {.token = token,
          .parent = parent,
          .q = {.form = Distribution::Form::kPointMass, .ids = {token}, .total = 1}};
}

// A tree whose second children are the tokens of `right`, so that their path is 1, 3, 5, ...
inline Proposal SecondChildren(std::span<const TokenId> right) {
  Proposal tree;
  int parent = -1;
  for (TokenId token : right) {
    tree.push_back(Certain((token + 1) % 256, parent));
    tree.push_back(Certain(token, parent));
    parent = static_cast<int>(tree.size()) - 1;
  }
  return tree;
}

inline bool SameVerdicts(const Verdict& a, const Verdict& b) {
  return a.path == b.path && a.token == b.token && a.kind == b.kind && a.empty_residual == b.empty_residual &&
         a.log_probabilities == b.log_probabilities && a.expected_accepted == b.expected_accepted &&
         a.expected_variance == b.expected_variance && a.judged == b.judged && a.surprisal == b.surprisal &&
         a.entropy == b.entropy;
}

// Whether a tree begins with all nodes of another, bit by bit.
inline bool BeginsWith(const Proposal& tree, const Proposal& begin) {
  return begin.size() <= tree.size() &&
         std::equal(begin.begin(), begin.end(), tree.begin(), [](const auto& a, const auto& b) {
           return a.token == b.token && a.parent == b.parent && a.q.form == b.q.form && a.q.ids == b.q.ids &&
                  a.q.weights == b.q.weights && a.q.total == b.q.total;
         });
}

inline std::vector<TokenId> Text(int n, int salt = 0) {
  std::vector<TokenId> tokens(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) tokens[static_cast<size_t>(i)] = (i * 37 + salt * 11 + 5) % 256;
  return tokens;
}

// Workers with kTreeModel, whose rows are counted, and greedy sequences.
class WorkerTreesTest : public ::testing::Test {
 protected:
  struct Options {
    int kv_blocks = 256;
    int max_batch_rows = 128;
    bool prefix_cache = true;
  };

  std::unique_ptr<Worker> Start(const Options& options, std::unique_ptr<Sampler> sampler,
                                const Backend& backend = **BackendFor("native", "cpu")) {
    auto runner = Runner::Load(TreeModel(options.kv_blocks, 4, options.max_batch_rows), backend);
    EXPECT_TRUE(runner.ok()) << runner.status();
    return std::make_unique<Worker>(
        *std::move(runner), std::move(sampler),
        WorkerOptions{.max_batch_rows = options.max_batch_rows,
                      .sequences = {.prefix_cache = options.prefix_cache},
                      .check_invariants = true},
        Worker::Hooks{
            .on_step =
                [this](const StepStats& step) {
                  ++steps_;
                  rows_ += step.rows;
                  most_rows_ = std::max(most_rows_.load(), step.rows);
                },
            .on_state = [this](const SequenceStoreCounts& counts) { preemptions_ = counts.preemptions; }});
  }
  std::unique_ptr<Worker> Target(const Options& options) {
    return Start(options, std::make_unique<RejectionSampler>());
  }
  std::unique_ptr<Worker> Target() { return Target(Options()); }

  WorkItem Verify(uint64_t id, uint64_t round, std::span<const TokenId> tokens, int base,
                  Proposal tree = {}) {
    return TreeItem(id, round, tokens, base, greedy_, VerifyWork{.proposal = std::move(tree)});
  }
  WorkItem Draft(uint64_t id, uint64_t round, std::span<const TokenId> tokens, int base,
                 const char* shape = "2x2x1") {
    return TreeItem(id, round, tokens, base, greedy_,
                    ProposeWork{.draft_tokens = 3, .tree = *ParseTreeShape(shape)});
  }

  // The text and `more` tokens that plain decoding adds.
  std::vector<TokenId> Plain(std::vector<TokenId> text, int more) {
    const auto worker = Target({.prefix_cache = false});
    for (int i = 0; i < more; ++i) {
      const TreeReply reply = AskTree(*worker, Verify(static_cast<uint64_t>(i), 1, text, 0));
      EXPECT_TRUE(reply.verdict.has_value()) << reply.status;
      if (reply.verdict) text.push_back(reply.verdict->token);
    }
    return text;
  }
  // The answer of a new worker to an item with all of `tokens`.
  TreeReply Alone(std::span<const TokenId> tokens, Proposal tree = {}) {
    return AskTree(*Target(), Verify(1, 1, tokens, 0, std::move(tree)));
  }
  static void ExpectSame(const TreeReply& reply, const TreeReply& expected) {
    ASSERT_TRUE(reply.status.ok()) << reply.status;
    EXPECT_TRUE(SameVerdicts(*reply.verdict, *expected.verdict));
  }

  const std::shared_ptr<const SequenceParams> greedy_ = [] {
    SequenceParams params{.prompt_length = 4, .draft_top_n = 8};
    params.sampling.temperature = 0;
    return std::make_shared<SequenceParams>(params);
  }();
  std::atomic<int> steps_ = 0, rows_ = 0, most_rows_ = 0;
  std::atomic<int64_t> preemptions_ = 0;
};

}  // namespace outrider::testing
