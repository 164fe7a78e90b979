#include "common/engine/stage_comparison.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

constexpr absl::string_view kKeys = "keys", kValues = "values", kLogits = "logits";

struct Kind {
  absl::string_view name;
  absl::string_view agrees;  // the inputs of the stage, which agree if it is the first that differs
  absl::string_view suspects;
};

// In the order of computation.
constexpr Kind kKinds[] = {
    {kEmbedded, "", "the embedding's rows"},
    {kQueries, "the residual stream before it agrees", "norm, product, bias, norm of heads, rotation"},
    {kKeys, "queries agree", "the keys' columns of the product, bias, norm, rotation, place in the cache"},
    {kValues, "queries and keys agree", "the values' columns of the product, bias, place in the cache"},
    {kAttended, "queries, keys and values agree", "attention"},
    {kAfterAttention, "attended agrees", "the product after attention, the sum"},
    {kActivated, "after attention agrees", "norm, products of gate and up, activation"},
    {kAfterMlp, "activated agrees", "the product down, the sum"},
    {kLogits, "the residual stream after all layers agrees", "last norm, last product"}};

int KindOf(absl::string_view name) {
  const auto* const found =
      std::find_if(std::begin(kKinds), std::end(kKinds), [&](const Kind& kind) { return kind.name == name; });
  return static_cast<int>(found - std::begin(kKinds));
}

// Returns `difference` and `largest` of StageDifference.
std::pair<double, double> Differences(absl::Span<const float> expected, absl::Span<const float> found) {
  double size = 0, squares = 0, largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double x = expected[i], by = std::abs(found[i] - x);
    size += x * x;
    squares += by * by;
    largest = std::max(largest, by);
    if (std::isnan(by)) return {by, by};
  }
  if (squares == 0) return {0, 0};
  return {std::sqrt(squares / size), largest / std::sqrt(size / static_cast<double>(expected.size()))};
}

}  // namespace

double RelativeDifference(absl::Span<const float> expected, absl::Span<const float> found) {
  return Differences(expected, found).first;
}

void StageRecord::Add(const StageOutput& output) {
  const size_t wanted = static_cast<size_t>(rows_) * static_cast<size_t>(output.columns);
  Rows& rows = stages_[{output.layer, KindOf(output.name)}];
  rows.columns = output.columns;
  rows.values.assign(output.values.begin(),
                     output.values.begin() + static_cast<ptrdiff_t>(std::min(wanted, output.values.size())));
}

void StageRecord::AddCached(const DecoderConfig& spec, absl::Span<const float> slot) {
  const int columns = spec.kv_heads * spec.head_dim;
  for (int layer = 0; layer < spec.layers; ++layer) {
    for (const absl::string_view name : {kKeys, kValues}) {
      Rows& rows = stages_[{layer, KindOf(name)}];
      rows.columns = columns;
      const absl::Span<const float> row = slot.first(static_cast<size_t>(columns));
      rows.values.insert(rows.values.end(), row.begin(), row.end());
      slot.remove_prefix(row.size());
    }
  }
}

void StageRecord::AddLogits(const DecoderConfig& spec, const LogitsView& logits) {
  Rows& rows = stages_[{spec.layers - 1, KindOf(kLogits)}];
  rows.columns = logits.vocab;
  rows.values.assign(logits.data, logits.data + static_cast<ptrdiff_t>(logits.rows) * logits.vocab);
}

std::vector<TokenId> ComparedTokens(int vocab) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < kComparedTokens; ++i) tokens.push_back(i * 37 % vocab);
  return tokens;
}

absl::StatusOr<std::vector<float>> ReadSlot(Model& model, const DecoderConfig& spec, int block_size,
                                            absl::Span<const BlockId> blocks, int slot) {
  std::vector<float> values(spec.kv_numbers());
  const BlockId block = blocks[static_cast<size_t>(slot / block_size)];
  OUTRIDER_TRY(model.ReadSlot(block, slot % block_size, absl::MakeSpan(values)));
  return values;
}

absl::Status RecordPasses(Model& model, const DecoderConfig& spec, int block_size,
                          absl::Span<const BlockId> blocks, std::vector<StageRecord>& passes) {
  const std::vector<TokenId> tokens = ComparedTokens(spec.vocab_size);
  int position = 0;
  for (const int rows : kComparedPasses) {
    StageRecord& record = passes.emplace_back(rows);
    const SequenceRows step = {.tokens = absl::MakeConstSpan(tokens).subspan(static_cast<size_t>(position),
                                                                             static_cast<size_t>(rows)),
                               .position = position,
                               .blocks = blocks,
                               .logit_rows = rows};
    const LogitsView logits = OUTRIDER_TRY(model.Forward({&step, 1}, {}));
    record.AddLogits(spec, logits);
    for (const int end = position + rows; position < end; ++position) {
      const std::vector<float> slot = OUTRIDER_TRY(ReadSlot(model, spec, block_size, blocks, position));
      record.AddCached(spec, slot);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<StageDifference>> DifferencesOf(const StageRecord& expected,
                                                           const StageRecord& found) {
  std::vector<StageDifference> made;
  std::map<std::pair<int, int>, StageRecord::Rows> other = found.stages_;
  other.insert(expected.stages_.begin(), expected.stages_.end());  // those that `found` lacks
  for (const auto& [place, unused] : other) {
    const auto& [layer, kind] = place;
    const absl::string_view name = kKinds[kind].name;
    const bool of_layer = name != kEmbedded && name != kLogits;
    const std::string title = of_layer ? absl::StrCat("layer ", layer, ", ", name) : std::string(name);
    const auto x = expected.stages_.find(place), y = found.stages_.find(place);
    const size_t rows = static_cast<size_t>(expected.rows_);
    const auto complete = [&](const auto& stage, const StageRecord& record) {
      return stage != record.stages_.end() &&
             stage->second.values.size() == rows * static_cast<size_t>(stage->second.columns);
    };
    if (!complete(x, expected) || !complete(y, found) || x->second.columns != y->second.columns) {
      return Invalid(title, ": the engines do not show the same rows");
    }
    const auto [difference, largest] = Differences(x->second.values, y->second.values);
    const Kind& made_of = kKinds[kind];
    made.push_back(
        {title, difference, largest,
         absl::StrCat(title, ": ", made_of.agrees, made_of.agrees.empty() ? "" : "; ", made_of.suspects)});
  }
  return made;
}

const StageDifference* FirstAbove(const std::vector<StageDifference>& stages, double tolerance) {
  const auto found = std::ranges::find_if(
      stages, [&](const StageDifference& stage) { return !(stage.difference <= tolerance); });
  return found == stages.end() ? nullptr : &*found;
}

}  // namespace outrider
