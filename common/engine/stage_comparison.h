// Finds the first stage of a forward pass that two engines compute differently.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/engine/batch.h"
#include "common/engine/decoder/decoder_spec.h"
#include "common/engine/model.h"
#include "common/engine/stage_output.h"

namespace outrider {

// The stages of one pass over the tokens of one sequence, all of whose logits are wanted. One thread.
class StageRecord {
 public:
  // rows: tokens of the pass.
  explicit StageRecord(int rows) : rows_(rows) {}

  // For RunnerOptions::observe. Of padded batches it takes the rows that count.
  void Add(const StageOutput& output);
  // What the cache holds of a token afterwards, as Model::ReadSlot gives it; token by token.
  void AddCached(const DecoderSpec& spec, absl::Span<const float> slot);
  void AddLogits(const DecoderSpec& spec, const LogitsView& logits);

 private:
  friend class StageComparison;
  struct Rows {
    int columns = 0;
    std::vector<float> values;  // [rows, columns]
  };

  const int rows_;
  std::map<std::pair<int, int>, Rows> stages_;  // by layer and kind, so in the order of computation
};

// The passes over one sequence that are compared, by their rows: a prompt of more positions than a split of
// attention has on a GPU (256), so that results are merged, and a few more tokens, as in a verification.
inline constexpr int kComparedPasses[] = {280, 5};
inline constexpr int kComparedTokens = 285;

// The tokens of that sequence, which any vocabulary has.
std::vector<TokenId> ComparedTokens(int vocab);

// Runs the passes in these blocks. Each adds a record to `passes`; the observer that the model was loaded
// with adds what it is shown to the last one. Errors are those of the model.
absl::Status RecordPasses(Model& model, const DecoderSpec& spec, int block_size,
                          absl::Span<const BlockId> blocks, std::vector<StageRecord>& passes);

// The root mean square of the differences, as a share of that of `expected`; no number if `found` has one
// that is none. Of the same size.
double RelativeDifference(absl::Span<const float> expected, absl::Span<const float> found);

// Both records are of the same tokens and shapes.
class StageComparison {
 public:
  struct Stage {
    std::string name;  // "layer 3, attended", "logits"
    // Root mean square of the differences, and the largest one; both as shares of the root mean square of
    // what is expected. Not a number if something found is none.
    double difference, largest;
    std::string finding;  // where it is the first that differs: what agrees, and what may be wrong
  };

  // INVALID_ARGUMENT, naming the stage, if a record lacks one that the other has, or some of its rows.
  static absl::StatusOr<StageComparison> Make(const StageRecord& expected, const StageRecord& found);

  const std::vector<Stage>& stages() const { return stages_; }  // in the order of computation
  // The first whose difference is larger than the tolerance, or no number; null: none.
  const Stage* FirstAbove(double tolerance) const;

 private:
  std::vector<Stage> stages_;
};

}  // namespace outrider
