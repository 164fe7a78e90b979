#include "common/engine/runner.h"

#include <sched.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/engine/cpu/cpu_model.h"
#include "common/engine/cpu/cpu_weights.h"
#include "common/engine/cpu/kernels.h"
#include "common/engine/cpu/memory.h"
#include "common/engine/kv_size.h"
#include "common/engine/model.h"
#include "common/engine/thread_pool.h"

namespace outrider {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kMaxBlockSize = 1 << 20;
constexpr int kMaxBatchRows = 1 << 16;

int AvailableCpus() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

Storage StorageOf(const std::string& dtype) {
  if (dtype == "int8") return Storage::kInt8;
  return dtype == "bfloat16" ? Storage::kBFloat16 : Storage::kFloat32;
}

absl::Status CheckOptions(const RunnerOptions& options) {
  const auto refuse = [](const auto&... parts) { return absl::InvalidArgumentError(absl::StrCat(parts...)); };
  const absl::StatusOr<std::optional<int>> device = ParseDevice(options.device);
  if (!device.ok()) return device.status();
  const bool cpu = !device->has_value();
  const std::vector<std::string> types = cpu ? std::vector<std::string>{"auto", "float32", "bfloat16", "int8"}
                                             : std::vector<std::string>{"auto", "bfloat16", "fp8"};
  if (std::find(types.begin(), types.end(), options.dtype) == types.end()) {
    return refuse("--dtype ", options.dtype, ": must be one of ", absl::StrJoin(types, ", "),
                  " with --device ", options.device);
  }
  if (options.threads < 0 || options.threads > kMaxThreads) {
    return refuse("--threads ", options.threads, ": must be in [0, ", kMaxThreads, "]");
  }
  if (options.kv_blocks < 0) return refuse("--kv-blocks ", options.kv_blocks, ": must be auto or positive");
  if (!(options.kv_memory_fraction > 0 && options.kv_memory_fraction <= 1)) {
    return refuse("--kv-memory-fraction ", options.kv_memory_fraction, ": must be in (0, 1]");
  }
  if (options.block_size < 1 || options.block_size > kMaxBlockSize) {
    return refuse("--block-size ", options.block_size, ": must be in [1, ", kMaxBlockSize, "]");
  }
  if (options.max_batch_rows < 1 || options.max_batch_rows > kMaxBatchRows) {
    return refuse("--max-batch-tokens ", options.max_batch_rows, ": must be in [1, ", kMaxBatchRows, "]");
  }
  if (!options.kernels.empty() && FindKernels(options.kernels.c_str()) == nullptr) {
    return refuse("kernels \"", options.kernels, "\" do not run on this CPU");
  }
  return absl::OkStatus();
}

}  // namespace

class Runner::Impl {
 public:
  Impl(const RunnerOptions& options, ModelConfig config)
      : options_(options),
        config_(std::move(config)),
        device_(*ParseDevice(options.device)),
        dtype_(options.dtype != "auto"           ? options.dtype
               : device_ || CpuPrefersBFloat16() ? "bfloat16"
                                                 : "float32"),
        kernels_(options.kernels.empty() ? BestKernels() : *FindKernels(options.kernels.c_str())),
        kernel_name_(device_ ? "cuda" : kernels_.name),
        pool_(options.threads > 0 ? options.threads : AvailableCpus()) {}

  absl::Status Load() {
    absl::StatusOr<std::unique_ptr<Model>> model = device_ ? LoadOnDevice() : LoadOnCpu();
    if (!model.ok()) return model.status();
    model_ = *std::move(model);
    return absl::OkStatus();
  }

  absl::Status Check(absl::Span<const SequenceRows> batch) const {
    size_t rows = 0;
    for (size_t i = 0; i < batch.size(); ++i) {
      if (absl::Status status = CheckSequence(i, batch[i]); !status.ok()) return status;
      rows += batch[i].tokens.size();
    }
    if (rows > static_cast<size_t>(options_.max_batch_rows)) {
      return absl::InvalidArgumentError(
          absl::StrCat("a batch of ", rows, " rows, at most ", options_.max_batch_rows, " fit"));
    }
    return absl::OkStatus();
  }

  const RunnerOptions options_;
  const ModelConfig config_;
  const std::optional<int> device_;  // none: the CPU
  const std::string dtype_;
  const Kernels& kernels_;
  const std::string kernel_name_;
  ThreadPool pool_;
  std::unique_ptr<Model> model_;

 private:
  absl::StatusOr<std::unique_ptr<Model>> LoadOnCpu() {
    const Storage storage = StorageOf(dtype_);
    absl::StatusOr<CpuWeights> weights =
        LoadCpuWeights(options_.model_dir, config_.decoder, storage, pool_, options_.progress);
    if (!weights.ok()) return weights.status();
    const int kv_blocks = options_.kv_blocks > 0 ? options_.kv_blocks : BlocksThatFit(storage);
    return CpuModel::Create(config_.decoder, *std::move(weights),
                            {kv_blocks, options_.block_size, options_.max_batch_rows}, kernels_, pool_);
  }

  absl::StatusOr<std::unique_ptr<Model>> LoadOnDevice() const {
    return options_.make_device_model(config_.decoder, {.model_dir = options_.model_dir,
                                                        .device = *device_,
                                                        .dtype = dtype_,
                                                        .kv_blocks = options_.kv_blocks,
                                                        .kv_memory_fraction = options_.kv_memory_fraction,
                                                        .max_sequences = options_.max_sequences,
                                                        .block_size = options_.block_size,
                                                        .max_batch_rows = options_.max_batch_rows,
                                                        .progress = options_.progress});
  }

  // A share of the memory that is free once the weights are loaded, but no more than can ever be used.
  int BlocksThatFit(Storage storage) const {
    const size_t block = LayOutKv(config_.decoder, storage, options_.block_size).block_bytes;
    return KvBlocksThatFit(options_.kv_memory_fraction * static_cast<double>(AvailableMemory()), block,
                           config_.decoder.max_position_embeddings, options_.block_size,
                           options_.max_sequences);
  }

  absl::Status CheckSequence(size_t index, const SequenceRows& sequence) const {
    const auto refuse = [index](const auto&... parts) {
      return absl::InvalidArgumentError(absl::StrCat("sequence ", index, " of the batch: ", parts...));
    };
    const int64_t count = static_cast<int64_t>(sequence.tokens.size());
    int64_t end = sequence.position + count;
    if (count == 0) return refuse("no tokens");
    if (sequence.position < 0) return refuse("position ", sequence.position);
    if (end > model_->max_positions()) {
      return refuse("position ", end - 1, ", the context has ", model_->max_positions());
    }
    if (sequence.logit_rows < 0 || sequence.logit_rows > count) {
      return refuse(sequence.logit_rows, " rows of logits for ", count, " tokens");
    }
    if (sequence.task != nullptr) {
      if (!model_->decides()) return refuse("a task, but this model does not decide");
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
};

absl::StatusOr<std::unique_ptr<Runner>> Runner::Load(const RunnerOptions& options) {
  if (absl::Status status = CheckOptions(options); !status.ok()) return status;
  absl::StatusOr<ModelConfig> config = ReadModelConfig(options.model_dir);
  if (!config.ok()) return config.status();
  auto impl = std::make_unique<Impl>(options, *std::move(config));
  if (absl::Status status = impl->Load(); !status.ok()) return status;
  return std::unique_ptr<Runner>(new Runner(std::move(impl)));
}

Runner::Runner(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Runner::~Runner() = default;

absl::StatusOr<LogitsView> Runner::Forward(absl::Span<const SequenceRows> batch) {
  if (absl::Status status = impl_->Check(batch); !status.ok()) return status;
  if (batch.empty()) return LogitsView{nullptr, 0, impl_->config_.decoder.vocab_size};
  return impl_->model_->Forward(batch);
}

void Runner::CopyBlock(BlockId from, BlockId to) { impl_->model_->CopyBlock(from, to); }

void Runner::Wake() {
  if (!impl_->device_) impl_->pool_.Wake();
}

void Runner::ParallelFor(int count, absl::FunctionRef<void(int i)> task) {
  impl_->pool_.Run(count, [&](int i, int /*worker*/) { task(i); });
}

bool Runner::decides() const { return impl_->model_->decides(); }

const ModelConfig& Runner::config() const { return impl_->config_; }
const std::string& Runner::dtype() const { return impl_->dtype_; }
const std::string& Runner::kernel_name() const { return impl_->kernel_name_; }
int Runner::threads() const { return impl_->pool_.threads(); }
int Runner::kv_blocks() const { return impl_->model_->kv_blocks(); }
int Runner::block_size() const { return impl_->options_.block_size; }
int Runner::max_batch_rows() const { return impl_->options_.max_batch_rows; }
size_t Runner::bytes_per_block() const { return impl_->model_->bytes_per_block(); }
size_t Runner::weight_bytes() const { return impl_->model_->weight_bytes(); }

}  // namespace outrider
