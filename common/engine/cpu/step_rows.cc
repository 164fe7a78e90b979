#include "common/engine/cpu/step_rows.h"

#include <algorithm>
#include <cstddef>

namespace outrider {

void StepRows::ReserveMemory(int max_rows) {
  const size_t rows = static_cast<size_t>(max_rows);
  rows_.reserve(rows);
  kept_rows_.reserve(rows);
  logit_rows_.reserve(rows);
  attention_tasks_.reserve(rows * static_cast<size_t>(heads_));
}

void StepRows::List(absl::Span<const SequenceRows> batch) {
  rows_.clear();
  kept_rows_.clear();
  logit_rows_.clear();
  hidden_rows_.clear();
  attention_tasks_.clear();
  paths_.clear();
  path_slots_.clear();
  for (const SequenceRows& sequence : batch) {
    const int first_row = size();
    const int first_path = static_cast<int>(paths_.size());
    const int count = static_cast<int>(sequence.tokens.size());
    const int nodes_begin = sequence.parents.empty() ? sequence.position + count : sequence.tree_begin;
    for (int i = 0; i < count; ++i) {
      const int slot = sequence.position + i;
      const int position =
          slot < nodes_begin ? slot : nodes_begin + AddPath(sequence, slot - nodes_begin) - 1;
      const int kept = static_cast<int>(kept_rows_.size());
      const bool has_logits = i >= count - sequence.logit_rows;
      const bool has_hidden = i >= count - sequence.hidden_rows;
      if (has_logits || has_hidden) kept_rows_.push_back(size());
      if (has_logits) logit_rows_.push_back(kept);
      if (has_hidden) hidden_rows_.push_back(kept);
      rows_.push_back({sequence.tokens[static_cast<size_t>(i)], position,
                       sequence.blocks[static_cast<size_t>(slot / block_size_)], slot % block_size_});
    }
    const int chain = std::clamp(nodes_begin - sequence.position, 0, count);
    AddTasks(sequence, first_row, chain, sequence.position, -1);
    AddTasks(sequence, first_row + chain, count - chain, nodes_begin, first_path);
  }
}

void StepRows::AddTasks(const SequenceRows& sequence, int first_row, int count, int first_position,
                        int first_path) {
  const int group = heads_ / kv_heads_;
  const int heads_per_task = std::min(group, kMaxQueries);
  const int rows_per_task = kMaxQueries / heads_per_task;
  const bool chain = first_path < 0;
  for (int r = 0; r < count; r += rows_per_task) {
    for (int kv_head = 0; kv_head < kv_heads_; ++kv_head) {
      for (int h = 0; h < group; h += heads_per_task) {
        attention_tasks_.push_back({sequence.blocks.data(), first_row + r, std::min(rows_per_task, count - r),
                                    chain ? first_position + r : first_position, kv_head * group + h,
                                    std::min(heads_per_task, group - h), chain ? -1 : first_path + r});
      }
    }
  }
}

int StepRows::AddPath(const SequenceRows& sequence, int node) {
  const size_t first = path_slots_.size();
  for (; node >= 0; node = sequence.parents[static_cast<size_t>(node)]) {
    path_slots_.push_back(sequence.tree_begin + node);
  }
  std::reverse(path_slots_.begin() + static_cast<std::ptrdiff_t>(first), path_slots_.end());
  const int length = static_cast<int>(path_slots_.size() - first);
  paths_.push_back({static_cast<int>(first), length});
  return length;
}

}  // namespace outrider
