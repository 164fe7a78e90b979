// Workers that judge or draft trees, and the items that they get.
#pragma once

#include <gmock/gmock.h>

#include <algorithm>
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
  std::vector<double> logprobs = {};  // of the prompt, then of what was emitted
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

// A tree in which `right` is the second child of each level, and so its path 1, 3, 5, ...
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

// Whether a tree begins with all of another, node by node and bit by bit.
inline bool BeginsWith(const Proposal& tree, const Proposal& begin) {
  return begin.size() <= tree.size() &&
         std::equal(begin.begin(), begin.end(), tree.begin(), [](const auto& a, const auto& b) {
           return a.token == b.token && a.parent == b.parent && a.q.form == b.q.form && a.q.ids == b.q.ids &&
                  a.q.weights == b.q.weights && a.q.total == b.q.total;
         });
}

}  // namespace outrider::testing
