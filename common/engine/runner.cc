#include "common/engine/runner.h"

#include <sched.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/engine/decoder/checkpoint.h"
#include "common/engine/decoder/frequent_head.h"
#include "common/engine/proposers/load.h"
#include "common/engine/self_test.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

int ThreadsFor(const RunnerOptions& options) {
  if (options.threads > 0) return options.threads;
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

// Checks the backend's own options, then those that are common to all.
absl::Status CheckOptions(const Backend& backend, const RunnerOptions& options) {
  OUTRIDER_TRY(backend.Check(options));
  const ParallelOptions& parallel = options.parallel;
  const struct {
    const char* flag;
    int value, least, most;
  } ranges[] = {{"--threads", options.threads, 0, 1024},
                {"--block-size", options.block_size, 1, 1 << 20},
                {"--max-batch-tokens", options.max_batch_rows, 1, 1 << 16},
                {"--tensor-parallel", parallel.size, 1, 64}};
  for (const auto& [flag, value, least, most] : ranges) {
    if (value < least || value > most) {
      return Invalid(flag, " ", value, ": must be in [", least, ", ", most, "]");
    }
  }
  if (options.kv_blocks < 0) return Invalid("--kv-blocks ", options.kv_blocks, ": must be auto or positive");
  if (!(options.kv_memory_fraction > 0 && options.kv_memory_fraction <= 1)) {
    return Invalid("--kv-memory-fraction ", options.kv_memory_fraction, ": must be in (0, 1]");
  }
  if (parallel.size > 1 && options.engine != "torch") {
    return Invalid("--tensor-parallel ", parallel.size, ": needs --engine torch");
  }
  if (options.frequent_tokens < 0) {
    return Invalid("--frequent-tokens ", options.frequent_tokens, ": must be at least 0");
  }
  if (!options.matmul_algorithms.empty() && (options.engine != "native" || options.device == "cpu")) {
    return Invalid("--matmul-algorithms ", options.matmul_algorithms,
                   ": needs --device cuda:N and --engine native");
  }
  if (parallel.rank < 0 || parallel.rank >= parallel.size) {
    return Invalid("--rank ", parallel.rank, ": must be in [0, ", parallel.size - 1,
                   "] with --tensor-parallel ", parallel.size);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Runner>> Runner::Load(const RunnerOptions& options) {
  const std::unique_ptr<Backend> backend = OUTRIDER_TRY(BackendFor(options.engine, options.device));
  return Load(options, *backend);
}

absl::StatusOr<std::unique_ptr<Runner>> Runner::Load(const RunnerOptions& options, const Backend& backend) {
  OUTRIDER_TRY(CheckOptions(backend, options));
  const std::unique_ptr<const Checkpoint> checkpoint = OUTRIDER_TRY(Checkpoint::Open(options.model_dir));
  const TensorSource& whole = checkpoint->weights();
  std::unique_ptr<Runner> runner(new Runner(options, checkpoint->config()));
  if (backend.IsTestedFirst()) {
    OUTRIDER_TRY(SelfTest(backend, runner->config_.decoder, options, runner->thread_pool_));
  }
  DecoderConfig spec = runner->config_.decoder;
  if (options.frequent_tokens > 0 && options.frequent_tokens < spec.vocab_size) {
    spec.head_tokens = runner->frequent_ =
        OUTRIDER_TRY(ReadFrequentTokens(options.model_dir, options.frequent_tokens, spec.vocab_size));
  }
  const FrequentHead cut(whole, runner->config_.decoder, runner->frequent_);
  const TensorSource& weights = !spec.head_tokens.empty() ? static_cast<const TensorSource&>(cut) : whole;
  RunnerOptions sized = options;
  sized.more_block_bytes = ProposerBytesPerBlock(options, spec);
  runner->model_ = OUTRIDER_TRY(backend.Load(spec, weights, sized, runner->thread_pool_));
  if (!spec.head_tokens.empty() && TextTokens::HasRowsOfHead(spec, *runner->model_)) {
    runner->text_tokens_ = std::make_unique<TextTokens>(runner->frequent_, spec, *runner->model_);
  }
  if (options.parallel.rank == 0) runner->weights_hash_ = checkpoint->Hash();
  if (options.heads.empty()) return runner;
  runner->proposers_ = OUTRIDER_TRY(LoadProposers({.backend = backend,
                                                   .options = options,
                                                   .decoder = runner->config_.decoder,
                                                   .weights = whole,
                                                   .weights_hash = runner->weights_hash_,
                                                   .model = *runner->model_,
                                                   .threads = runner->thread_pool_}));
  return runner;
}

absl::StatusOr<bool> Runner::Test(const RunnerOptions& options,
                                  absl::FunctionRef<void(absl::string_view line)> report) {
  const std::unique_ptr<Backend> backend = OUTRIDER_TRY(BackendFor(options.engine, options.device));
  OUTRIDER_TRY(CheckOptions(*backend, options));
  const ModelConfig config = OUTRIDER_TRY(ReadModelConfig(options.model_dir));
  ThreadPool threads(ThreadsFor(options));
  return SelfTestInFull(*backend, config.decoder, options, threads, report);
}

Runner::Runner(const RunnerOptions& options, ModelConfig config)
    : options_(options), config_(std::move(config)), thread_pool_(ThreadsFor(options)) {}

absl::StatusOr<LogitsView> Runner::Forward(absl::Span<const SequenceRows> batch, const PassOptions& pass) {
  OUTRIDER_TRY(CheckBatch(batch, pass));
  if (batch.empty()) return LogitsView{nullptr, 0, config_.decoder.vocab_size};
  return frequent_.empty() ? model_->Forward(batch, pass) : ForwardFrequent(batch, pass);
}

absl::StatusOr<LogitsView> Runner::ForwardFrequent(absl::Span<const SequenceRows> batch,
                                                   const PassOptions& pass) {
  std::vector<SequenceRows> sequences(batch.begin(), batch.end());
  const auto has_text = [&](const SequenceRows& sequence) {
    return text_tokens_ != nullptr && !sequence.text.empty();
  };
  for (SequenceRows& sequence : sequences) {
    if (has_text(sequence)) sequence.hidden_rows = sequence.logit_rows;
  }
  const LogitsView logits = OUTRIDER_TRY(model_->Forward(sequences, pass));
  const size_t vocab = static_cast<size_t>(config_.decoder.vocab_size);
  spread_.resize(static_cast<size_t>(logits.rows) * vocab);
  const LogitsView spread{spread_.data(), logits.rows, config_.decoder.vocab_size, logits.hidden};
  for (int r = 0; r < logits.rows; ++r) SpreadLogits(logits.row(r), frequent_, spread.row(r));
  int first_row = 0, first_state = 0;
  for (const SequenceRows& sequence : sequences) {
    const int row = std::exchange(first_row, first_row + sequence.logit_rows);
    const int state = std::exchange(first_state, first_state + sequence.hidden_rows);
    if (!has_text(sequence)) continue;
    const std::vector<TokenId> others = text_tokens_->OthersIn(sequence.text);
    for (int r = 0; r < sequence.logit_rows; ++r) {
      OUTRIDER_TRY(text_tokens_->SetLogits(logits.hidden.row(state + r), others, spread.row(row + r)));
    }
  }
  return spread;
}

std::string Runner::numerics() const {
  const std::string rest = model_->bits_depend_on();
  return absl::StrCat(options_.engine, " ", dtype(), " ", kernel_name(), rest.empty() ? "" : ", ", rest);
}

absl::StatusOr<std::vector<float>> Runner::ReadSlot(BlockId block, int slot) {
  if (block < 0 || block >= model_->kv_blocks() || slot < 0 || slot >= options_.block_size) {
    return Invalid("slot ", slot, " of block ", block, " is not in the pool");
  }
  std::vector<float> values(config_.decoder.kv_numbers());
  OUTRIDER_TRY(model_->ReadSlot(block, slot, absl::MakeSpan(values)));
  return values;
}

absl::Status Runner::CheckBatch(absl::Span<const SequenceRows> batch, const PassOptions& pass) const {
  OUTRIDER_TRY(CheckPass(pass));
  size_t rows = 0, logit_rows = 0;
  for (size_t i = 0; i < batch.size(); ++i) {
    OUTRIDER_TRY(CheckSequence(i, batch[i]));
    rows += batch[i].tokens.size();
    logit_rows += static_cast<size_t>(batch[i].logit_rows);
  }
  if (logit_rows > static_cast<size_t>(kMaxLogitRows)) {
    return Invalid("a batch with ", logit_rows, " rows of logits, at most ", kMaxLogitRows, " fit");
  }
  if (rows > static_cast<size_t>(options_.max_batch_rows)) {
    return Invalid("a batch of ", rows, " rows, at most ", options_.max_batch_rows, " fit");
  }
  return absl::OkStatus();
}

absl::Status Runner::CheckPass(const PassOptions& pass) const {
  const int all = config_.decoder.layers;
  const bool is_default = pass.layers == 0 && pass.taps.empty();
  if (!is_default && !model_->has_hidden_states()) {
    return Invalid("a pass of the first layers or with taps, on an engine that shows no hidden states");
  }
  if (pass.layers < 0 || pass.layers > all)
    return Invalid("a pass of ", pass.layers, " layers, there are ", all);
  const int layers = pass.layers > 0 ? pass.layers : all;
  for (const int tap : pass.taps) {
    if (tap < 1 || tap > layers) return Invalid("a pass of ", layers, " layers with a tap after ", tap);
  }
  return absl::OkStatus();
}

absl::Status Runner::CheckSequence(size_t index, const SequenceRows& sequence) const {
  const auto refuse = [index](const auto&... parts) {
    return Invalid("sequence ", index, " of the batch: ", parts...);
  };
  const int64_t count = static_cast<int64_t>(sequence.tokens.size());
  int64_t end = sequence.position + count;
  if (count == 0) return refuse("no tokens");
  if (sequence.position < 0) return refuse("position ", sequence.position);
  if (absl::Status status = CheckPositions(sequence); !status.ok()) return refuse(status.message());
  if (sequence.logit_rows < 0 || sequence.logit_rows > count) {
    return refuse(sequence.logit_rows, " rows of logits for ", count, " tokens");
  }
  if (sequence.hidden_rows != 0 || !sequence.embeddings.empty()) {
    if (!model_->has_hidden_states()) return refuse("hidden states, on an engine that shows none");
    const int64_t hidden = config_.decoder.hidden_size;
    const int64_t numbers = static_cast<int64_t>(sequence.embeddings.size());
    if (sequence.hidden_rows < 0 || sequence.hidden_rows > count) {
      return refuse(sequence.hidden_rows, " rows of hidden states for ", count, " tokens");
    }
    if (numbers % hidden != 0) return refuse(numbers, " numbers of embeddings, a row has ", hidden);
    if (numbers / hidden > count) return refuse(numbers / hidden, " embeddings for ", count, " tokens");
  }
  if (sequence.task != nullptr) {
    if (!sequence.parents.empty()) return refuse("a task for a tree");
    if (!model_->CanRun(*sequence.task)) return refuse("a task that this model cannot run");
    if (const auto* propose = std::get_if<ProposeTask>(&sequence.task->work))
      end += propose->draft_tokens - 1;
  }
  const int64_t needed = (end + options_.block_size - 1) / options_.block_size;
  if (static_cast<int64_t>(sequence.blocks.size()) < needed) {
    return refuse("a table of ", sequence.blocks.size(), " blocks, ", needed, " are needed");
  }
  for (const BlockId block : sequence.blocks.first(static_cast<size_t>(needed))) {
    if (block < 0 || block >= model_->kv_blocks()) return refuse("block ", block, " is not in the pool");
  }
  for (const TokenId token : sequence.tokens) {
    if (token < 0 || token >= config_.decoder.vocab_size)
      return refuse("token ", token, " is not in the vocabulary");
  }
  return absl::OkStatus();
}

absl::Status Runner::CheckPositions(const SequenceRows& sequence) const {
  const int64_t end = sequence.position + static_cast<int64_t>(sequence.tokens.size());
  int64_t positions = end;
  if (!sequence.parents.empty()) {
    const int begin = sequence.tree_begin;
    if (begin < 0 || end - begin != static_cast<int64_t>(sequence.parents.size())) {
      return Invalid("a tree of ", sequence.parents.size(), " nodes from slot ", begin, " to slot ", end - 1);
    }
    std::vector<int> levels;  // the level of each node, from 1 on
    for (const int parent : sequence.parents) {
      const int node = static_cast<int>(levels.size());
      if (parent < -1 || parent >= node) return Invalid("node ", node, " follows node ", parent);
      levels.push_back(parent < 0 ? 1 : levels[static_cast<size_t>(parent)] + 1);
    }
    positions = begin + *std::max_element(levels.begin(), levels.end());
  }
  if (positions > model_->max_positions()) {
    return Invalid("position ", positions - 1, ", the context has ", model_->max_positions());
  }
  return absl::OkStatus();
}

}  // namespace outrider
