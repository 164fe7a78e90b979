// The rows of a step on the CPU: where each one's keys and values go, and what it attends to.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/engine/batch.h"
#include "common/engine/cpu/kernels.h"
#include "common/kv/block_id.h"
#include "common/spec/types.h"

namespace outrider {

// One row of a batch.
struct StepRow {
  TokenId token;
  int32_t position;
  int32_t block;
  int32_t slot;  // within the block
};

// One call of the attention kernel: consecutive rows of one sequence, and query heads that share a KV head.
struct AttentionTask {
  const BlockId* blocks;
  int first_row;
  int rows;
  int first_position;  // see AttentionArgs
  int first_head;
  int heads;
  int first_path;  // index in paths() of the first row's path; -1: the rows are a chain
};

// The rows of a step and their attention tasks. Keeps its memory from step to step.
class StepRows {
 public:
  // `heads` and `kv_heads` are the numbers of query and KV heads.
  StepRows(int heads, int kv_heads, int block_size)
      : heads_(heads), kv_heads_(kv_heads), block_size_(block_size) {}
  void ReserveMemory(int max_rows);

  // Lists the rows of a step in place of the last step's. The batch's block tables must outlive the list.
  void List(absl::Span<const SequenceRows> batch);

  int size() const { return static_cast<int>(rows_.size()); }
  const StepRow& operator[](int row) const { return rows_[static_cast<size_t>(row)]; }
  // Indices of the rows that need logits or whose hidden states are wanted, in ascending order.
  const std::vector<int>& kept_rows() const { return kept_rows_; }
  // Indices in kept_rows() of the rows that need logits, and of the rows whose hidden states are wanted.
  const std::vector<int>& logit_rows() const { return logit_rows_; }
  const std::vector<int>& hidden_rows() const { return hidden_rows_; }
  const std::vector<AttentionTask>& attention_tasks() const { return attention_tasks_; }
  // The paths of the rows that are tree nodes, from index `first` on.
  const NodePath* paths(int first) const { return paths_.data() + first; }
  const int32_t* path_slots() const { return path_slots_.data(); }

 private:
  // Adds tasks for `count` rows from `first_row` on: a chain if `first_path` is -1, else nodes of a tree.
  void AddTasks(const SequenceRows& sequence, int first_row, int count, int first_position, int first_path);
  // Adds the path of a node and returns its length.
  int AddPath(const SequenceRows& sequence, int node);

  const int heads_, kv_heads_, block_size_;
  std::vector<StepRow> rows_;
  std::vector<int> kept_rows_;
  std::vector<int> logit_rows_;
  std::vector<int> hidden_rows_;
  std::vector<AttentionTask> attention_tasks_;
  std::vector<NodePath> paths_;
  std::vector<int32_t> path_slots_;
};

}  // namespace outrider
