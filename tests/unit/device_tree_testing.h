// Trees of drafted tokens, and an engine's logits for their paths as chains.
#pragma once

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "tests/unit/engine_helpers.h"

namespace outrider::testing {

// The parents of a tree's nodes: one of the `reach` nodes before each, or -1. A small reach makes deep
// trees.
inline std::vector<int> SomeParents(int nodes, int reach, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int> parents;
  for (int i = 0; i < nodes; ++i) {
    const int first = std::max(-1, i - reach);
    parents.push_back(first + static_cast<int>(random() % static_cast<unsigned>(i - first)));
  }
  return parents;
}

// A prompt and a tree of drafted tokens after it.
class TreeSequence {
 public:
  TreeSequence(std::vector<TokenId> prompt, const std::vector<TokenId>& nodes, std::vector<int> parents,
               std::vector<BlockId> blocks)
      : tokens_(std::move(prompt)),
        prompt_(static_cast<int>(tokens_.size())),
        parents_(std::move(parents)),
        blocks_(std::move(blocks)) {
    tokens_.insert(tokens_.end(), nodes.begin(), nodes.end());
  }

  int prompt() const { return prompt_; }
  int slots() const { return static_cast<int>(tokens_.size()); }
  int nodes() const { return slots() - prompt_; }
  absl::Span<const BlockId> blocks() const { return blocks_; }

  // The rows in the slots [begin, end), all of them with logits.
  SequenceRows Rows(int begin, int end) const {
    const auto count = static_cast<size_t>(end - begin);
    return {.tokens = absl::MakeConstSpan(tokens_).subspan(static_cast<size_t>(begin), count),
            .position = begin,
            .blocks = blocks_,
            .logit_rows = end - begin,
            .tree_begin = prompt_,
            .parents = absl::MakeConstSpan(parents_).first(static_cast<size_t>(std::max(0, end - prompt_)))};
  }

  // The nodes of the path to a node, itself last; nothing for -1.
  std::vector<int> PathTo(int node) const {
    std::vector<int> path;
    for (; node >= 0; node = parents_[static_cast<size_t>(node)]) path.insert(path.begin(), node);
    return path;
  }
  // The prompt and the tokens of a path.
  std::vector<TokenId> Chain(absl::Span<const int> path) const {
    std::vector<TokenId> chain(tokens_.begin(), tokens_.begin() + prompt_);
    for (const int node : path) chain.push_back(tokens_[static_cast<size_t>(prompt_ + node)]);
    return chain;
  }
  // The moves that bring a path to the slots that it would have as a chain.
  std::vector<SlotMove> MovesOf(absl::Span<const int> path) const {
    std::vector<SlotMove> moves;
    for (size_t depth = 0; depth < path.size(); ++depth) {
      const SlotMove move = {prompt_ + path[depth], prompt_ + static_cast<int>(depth)};
      if (move.from != move.to) moves.push_back(move);
    }
    return moves;
  }

 private:
  std::vector<TokenId> tokens_;
  int prompt_;
  std::vector<int> parents_;
  std::vector<BlockId> blocks_;
};

inline TreeSequence SomeTree(const Runner& runner, int prompt, int nodes, int reach, uint32_t seed,
                             BlockId first_block = 0) {
  const int vocab = runner.config().decoder.vocab_size;
  return {SomeTokens(prompt, vocab, seed), SomeTokens(nodes, vocab, seed + 1000),
          SomeParents(nodes, reach, seed), BlocksFor(runner, prompt + nodes, first_block)};
}

// The logits of a step.
inline Logits LogitsOf(Runner& runner, absl::Span<const SequenceRows> batch) {
  Logits logits;
  const absl::StatusOr<LogitsView> view = runner.Forward(batch);
  EXPECT_TRUE(view.ok()) << view.status();
  for (int r = 0; view.ok() && r < view->rows; ++r) logits.push_back(RowOf(*view, r));
  return logits;
}

// Feeds the prompt without its last token, which the first step that returns logits computes.
inline void FeedPrompt(Runner& runner, const TreeSequence& sequence) {
  SequenceRows rows = sequence.Rows(0, sequence.prompt() - 1);
  rows.logit_rows = 0;
  LogitsOf(runner, {&rows, 1});
}

// The logits after the prompt and after each node, in steps of at most `most` rows.
inline Logits LogitsOfTree(Runner& runner, const TreeSequence& tree, int most) {
  FeedPrompt(runner, tree);
  Logits logits;
  for (int begin = tree.prompt() - 1; begin < tree.slots(); begin += most) {
    const SequenceRows rows = tree.Rows(begin, std::min(begin + most, tree.slots()));
    for (auto& row : LogitsOf(runner, {&rows, 1})) logits.push_back(std::move(row));
  }
  return logits;
}

// The logits after the prompt and after each node, with its path computed as a chain in these blocks.
inline Logits LogitsOfChains(Runner& runner, const TreeSequence& sequence, absl::Span<const BlockId> blocks) {
  Logits logits;
  const std::vector<TokenId> prompt = sequence.Chain({});
  Append(runner, prompt, 0, blocks, runner.max_batch_rows());
  for (int node = -1; node < sequence.nodes(); ++node) {
    const std::vector<TokenId> chain = sequence.Chain(sequence.PathTo(node));
    logits.push_back(Append(runner, absl::MakeConstSpan(chain).subspan(prompt.size() - 1),
                            sequence.prompt() - 1, blocks, runner.max_batch_rows())
                         .back());
  }
  return logits;
}

// How many rows do not have the same bits.
inline int DifferentRows(const Logits& a, const Logits& b) {
  EXPECT_EQ(a.size(), b.size());
  int different = 0;
  for (size_t r = 0; r < std::min(a.size(), b.size()); ++r) {
    different += std::memcmp(a[r].data(), b[r].data(), a[r].size() * sizeof(float)) == 0 ? 0 : 1;
  }
  return different;
}

}  // namespace outrider::testing
