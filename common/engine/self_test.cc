#include "common/engine/self_test.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/engine/stage_comparison.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

constexpr int kPromptTokens = kComparedPasses[0], kFurtherTokens = kComparedPasses[1];
// The test at start must be quick. The full test has several tokens of a row per thread of a CUDA block.
constexpr int kStartVocab = 256, kVocab = 4096;

// The logits of the tokens after the prompt.
absl::StatusOr<std::vector<float>> FurtherLogits(Model& model, const SelfTestModel& small) {
  const std::vector<TokenId> tokens = ComparedTokens(small.spec().vocab_size);
  const std::vector<BlockId> blocks = small.Blocks(0, kComparedTokens);
  const absl::Span<const TokenId> all = tokens;
  const SequenceRows prompt = {
      .tokens = all.first(kPromptTokens), .position = 0, .blocks = blocks, .logit_rows = 0};
  OUTRIDER_TRY(model.Forward({&prompt, 1}, {}));
  const SequenceRows further = {.tokens = all.subspan(kPromptTokens),
                                .position = kPromptTokens,
                                .blocks = blocks,
                                .logit_rows = kFurtherTokens};
  const LogitsView logits = OUTRIDER_TRY(model.Forward({&further, 1}, {}));
  return std::vector<float>(logits.data, logits.data + int64_t{logits.rows} * logits.vocab);
}

struct LogitsDifference {
  double by;  // relative to their size
  std::string dtype;

  bool is_rounding() const { return by <= SelfTestTolerance(dtype); }
  std::string InWords() const {
    return absl::StrFormat("logits differ from the CPU's by %.2g of their size, and %s explains %g at most",
                           by, dtype, SelfTestTolerance(dtype));
  }
};

absl::StatusOr<LogitsDifference> CompareLogits(Model& exact, Model& tested, const SelfTestModel& small) {
  const std::vector<float> expected = OUTRIDER_TRY(FurtherLogits(exact, small));
  const std::vector<float> found = OUTRIDER_TRY(FurtherLogits(tested, small));
  return LogitsDifference{RelativeDifference(expected, found), tested.dtype()};
}

absl::StatusOr<LogitsDifference> CompareAtStart(const Backend& backend, const SelfTestModel& small,
                                                ThreadPool& threads) {
  const std::unique_ptr<Model> exact = OUTRIDER_TRY(small.LoadExact("native", threads));
  const std::unique_ptr<Model> tested = OUTRIDER_TRY(small.Load(backend, threads));
  return CompareLogits(*exact, *tested, small);
}

// Checks the stages. Returns the largest difference, in words.
absl::StatusOr<std::string> CompareStages(const Backend& backend, const std::string& exact_engine,
                                          const SelfTestModel& small, ThreadPool& threads) {
  std::vector<StageRecord> expected, found;
  const auto adds_to = [](std::vector<StageRecord>& passes) {
    return [&passes](const StageOutput& output) { passes.back().Add(output); };
  };
  const std::unique_ptr<Model> exact =
      OUTRIDER_TRY(small.LoadExact(exact_engine, threads, adds_to(expected)));
  const std::unique_ptr<Model> tested = OUTRIDER_TRY(small.Load(backend, threads, adds_to(found)));
  const std::vector<BlockId> blocks = small.Blocks(0, kComparedTokens);
  const int block_size = small.options().block_size;
  OUTRIDER_TRY(RecordPasses(*exact, small.spec(), block_size, blocks, expected));
  OUTRIDER_TRY(RecordPasses(*tested, small.spec(), block_size, blocks, found));

  const std::string dtype = tested->dtype();
  const double tolerance = SelfTestTolerance(dtype);
  const auto in_words = [&](int rows, const StageDifference& stage) {
    return absl::StrFormat("by %.2g of its size in %d rows, and %s explains %g at most", stage.difference,
                           rows, dtype, tolerance);
  };
  double largest = -1;
  std::string most;
  for (size_t pass = 0; pass < expected.size(); ++pass) {
    const int rows = kComparedPasses[pass];
    const std::vector<StageDifference> compared = OUTRIDER_TRY(DifferencesOf(expected[pass], found[pass]));
    if (const StageDifference* const wrong = FirstAbove(compared, tolerance)) {
      return absl::FailedPreconditionError(
          absl::StrCat(wrong->finding, "; it differs ", in_words(rows, *wrong)));
    }
    for (const StageDifference& stage : compared) {
      if (stage.difference <= largest) continue;
      largest = stage.difference;
      most = absl::StrCat(stage.name, " differs most, ", in_words(rows, stage));
    }
  }
  return absl::StrCat("all are the CPU's: ", most);
}

}  // namespace

absl::Status SelfTest(const Backend& backend, const DecoderConfig& spec, const RunnerOptions& options,
                      ThreadPool& threads) {
  const absl::StatusOr<LogitsDifference> found =
      CompareAtStart(backend, SelfTestModel(spec, options, kStartVocab, kComparedTokens), threads);
  const auto refuse = [&](absl::string_view why) {
    return absl::FailedPreconditionError(absl::StrCat("--device ", options.device,
                                                      ": the kernels fail their test: ", why,
                                                      "; --engine torch does without them"));
  };
  if (absl::IsUnimplemented(found.status())) return refuse(found.status().message());
  if (!found.ok()) return found.status();
  return found->is_rounding() ? absl::OkStatus() : refuse(found->InWords());
}

absl::StatusOr<bool> SelfTestInFull(const Backend& backend, const DecoderConfig& spec,
                                    const RunnerOptions& options, ThreadPool& threads,
                                    absl::FunctionRef<void(absl::string_view line)> report) {
  const SelfTestModel small(spec, options, kVocab, kSelfTestTokens);
  const std::unique_ptr<Model> loaded = OUTRIDER_TRY(small.Load(backend, threads));
  Model& tested = *loaded;
  const std::string exact_engine = CheckNative(small.spec(), small.options()).ok() ? "native" : "torch";
  report(absl::StrFormat(
      "engine %s, device %s, dtype %s, kernels %s: %d layers, %d query heads of %d for a KV head",
      options.engine, options.device, tested.dtype(), tested.kernel_name(), small.spec().layers,
      small.spec().heads, small.spec().head_dim));

  const auto logits = [&]() -> absl::StatusOr<std::string> {
    const std::unique_ptr<Model> exact = OUTRIDER_TRY(small.LoadExact(exact_engine, threads));
    const LogitsDifference found = OUTRIDER_TRY(CompareLogits(*exact, tested, small));
    if (!found.is_rounding()) return absl::FailedPreconditionError(found.InWords());
    return found.InWords();
  };
  const std::pair<const char*, std::function<absl::StatusOr<std::string>()>> checks[] = {
      {"stages", [&] { return CompareStages(backend, exact_engine, small, threads); }},
      {"logits", logits},
      {"rows", [&] { return CheckRows(tested, small); }},
      {"decisions", [&] { return CheckDecisions(tested, small); }}};
  for (const auto& [name, check] : checks) {
    const absl::StatusOr<std::string> found = check();
    report(absl::StrFormat("%-7s %-10s %s", found.ok() ? "ok" : "FAILED", name,
                           found.ok() ? *found : std::string(found.status().message())));
    if (!found.ok()) return false;
  }
  return true;
}

}  // namespace outrider
