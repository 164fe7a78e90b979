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
#include "common/engine/decoder/decoder_config.h"
#include "common/engine/model.h"
#include "common/engine/runner_options.h"

namespace outrider {

struct StageDifference;

// Records the stages of one pass over the tokens of one sequence, all of which return logits. One thread.
class StageRecord {
 public:
  // rows: tokens of the pass.
  explicit StageRecord(int rows) : rows_(rows) {}

  // For RunnerOptions::observe. Ignores the padding rows of a batch.
  void Add(const StageOutput& output);
  // Adds the next token's keys and values, as Model::ReadSlot reads them after the pass.
  void AddCached(const DecoderConfig& spec, absl::Span<const float> slot);
  void AddLogits(const DecoderConfig& spec, const LogitsView& logits);

 private:
  friend absl::StatusOr<std::vector<StageDifference>> DifferencesOf(const StageRecord& expected,
                                                                    const StageRecord& found);
  struct Rows {
    int columns = 0;
    std::vector<float> values;  // [rows, columns]
  };

  const int rows_;
  std::map<std::pair<int, int>, Rows> stages_;  // by layer and kind, so in the order of computation
};

// The rows of each compared pass over one sequence: a prompt longer than a split of attention on a GPU (256
// positions), so that results are merged, and a few more tokens, as in a verification.
inline constexpr int kComparedPasses[] = {280, 5};
inline constexpr int kComparedTokens = 285;

// The tokens of that sequence; any vocabulary has them.
std::vector<TokenId> ComparedTokens(int vocab);

// Runs the passes in these blocks and adds a record to `passes` for each. The model's observer must add its
// stages to the last record. Errors are those of the model.
absl::Status RecordPasses(Model& model, const DecoderConfig& spec, int block_size,
                          absl::Span<const BlockId> blocks, std::vector<StageRecord>& passes);

// The keys and values of the token in a slot of these blocks, as Model::ReadSlot reads them.
absl::StatusOr<std::vector<float>> ReadSlot(Model& model, const DecoderConfig& spec, int block_size,
                                            absl::Span<const BlockId> blocks, int slot);

// The root mean square of the differences divided by that of `expected`; NaN if `found` has a NaN. Both have
// the same size.
double RelativeDifference(absl::Span<const float> expected, absl::Span<const float> found);

// How a stage differs between two engines.
struct StageDifference {
  std::string name;  // "layer 3, attended", "logits"
  // The root mean square of the differences, and the largest one, both divided by the root mean square of the
  // expected values. NaN if a found value is NaN.
  double difference, largest;
  std::string finding;  // for the first stage that differs: what agrees, and what may be wrong
};

// The differences of all stages, in the order of computation. Both records are of the same tokens and shapes.
// INVALID_ARGUMENT, naming the stage, if a record lacks a stage, or rows of a stage, that the other has.
absl::StatusOr<std::vector<StageDifference>> DifferencesOf(const StageRecord& expected,
                                                           const StageRecord& found);

// The first stage whose difference exceeds the tolerance or is NaN; null if there is none.
const StageDifference* FirstAbove(const std::vector<StageDifference>& stages, double tolerance);

}  // namespace outrider
