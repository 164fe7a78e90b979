#include "common/engine/runner.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/engine/kernels.h"
#include "common/engine/llama.h"
#include "common/engine/llama_weights.h"
#include "common/engine/memory.h"
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
  if (options.device != "cpu")
    return refuse("--device ", options.device, ": only \"cpu\" is supported by this build");
  constexpr const char* kTypes[] = {"auto", "float32", "bfloat16", "int8"};
  if (std::find(std::begin(kTypes), std::end(kTypes), options.dtype) == std::end(kTypes)) {
    return refuse("--dtype ", options.dtype,
                  ": only auto, float32, bfloat16 and int8 are supported on the CPU");
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
        dtype_(options.dtype != "auto" ? options.dtype
               : CpuPrefersBFloat16()  ? "bfloat16"
                                       : "float32"),
        kernels_(options.kernels.empty() ? BestKernels() : *FindKernels(options.kernels.c_str())),
        kernel_name_(kernels_.name),
        pool_(options.threads > 0 ? options.threads : AvailableCpus()),
        kv_blocks_(options.kv_blocks) {}

  absl::Status Load() {
    const Storage storage = StorageOf(dtype_);
    absl::StatusOr<LlamaWeights> weights =
        LoadLlamaWeights(options_.model_dir, config_, storage, pool_, options_.progress);
    if (!weights.ok()) return weights.status();
    if (kv_blocks_ == 0) kv_blocks_ = BlocksThatFit(storage);
    absl::StatusOr<std::unique_ptr<Llama>> model =
        Llama::Create(config_, *std::move(weights),
                      {kv_blocks_, options_.block_size, options_.max_batch_rows}, kernels_, pool_);
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

  // A share of the memory that is free once the weights are loaded, but no more than can ever be used.
  int BlocksThatFit(Storage storage) const {
    const size_t block = LayOutKv(config_, storage, options_.block_size).block_bytes;
    const double fit =
        options_.kv_memory_fraction * static_cast<double>(AvailableMemory()) / static_cast<double>(block);
    const double longest =
        std::ceil(static_cast<double>(config_.max_position_embeddings) / options_.block_size);
    return static_cast<int>(std::clamp(fit, 1.0, options_.max_sequences * longest));
  }

  const RunnerOptions options_;
  const ModelConfig config_;
  const std::string dtype_;
  const Kernels& kernels_;
  const std::string kernel_name_;
  ThreadPool pool_;
  int kv_blocks_;
  std::unique_ptr<Llama> model_;

 private:
  absl::Status CheckSequence(size_t index, const SequenceRows& sequence) const {
    const auto refuse = [index](const auto&... parts) {
      return absl::InvalidArgumentError(absl::StrCat("sequence ", index, " of the batch: ", parts...));
    };
    const int64_t count = static_cast<int64_t>(sequence.tokens.size());
    const int64_t end = sequence.position + count;
    if (count == 0) return refuse("no tokens");
    if (sequence.position < 0) return refuse("position ", sequence.position);
    if (end > model_->max_positions()) {
      return refuse("position ", end - 1, ", the context has ", model_->max_positions());
    }
    if (sequence.logit_rows < 0 || sequence.logit_rows > count) {
      return refuse(sequence.logit_rows, " rows of logits for ", count, " tokens");
    }
    const int64_t needed = (end + options_.block_size - 1) / options_.block_size;
    if (static_cast<int64_t>(sequence.blocks.size()) < needed) {
      return refuse("a table of ", sequence.blocks.size(), " blocks, ", needed, " are needed");
    }
    for (const BlockId block : sequence.blocks.first(static_cast<size_t>(needed))) {
      if (block < 0 || block >= kv_blocks_) return refuse("block ", block, " is not in the pool");
    }
    for (const TokenId token : sequence.tokens) {
      if (token < 0 || token >= config_.vocab_size)
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
  if (batch.empty()) return LogitsView{nullptr, 0, impl_->config_.vocab_size};
  return impl_->model_->Forward(batch);
}

void Runner::CopyBlock(BlockId from, BlockId to) { impl_->model_->CopyBlock(from, to); }

void Runner::Wake() { impl_->pool_.Wake(); }

void Runner::ParallelFor(int count, absl::FunctionRef<void(int i)> task) {
  impl_->pool_.Run(count, [&](int i, int /*worker*/) { task(i); });
}

const ModelConfig& Runner::config() const { return impl_->config_; }
const std::string& Runner::dtype() const { return impl_->dtype_; }
const std::string& Runner::kernel_name() const { return impl_->kernel_name_; }
int Runner::threads() const { return impl_->pool_.threads(); }
int Runner::kv_blocks() const { return impl_->kv_blocks_; }
int Runner::block_size() const { return impl_->options_.block_size; }
int Runner::max_batch_rows() const { return impl_->options_.max_batch_rows; }
size_t Runner::bytes_per_block() const { return impl_->model_->bytes_per_block(); }
size_t Runner::weight_bytes() const { return impl_->model_->weight_bytes(); }

}  // namespace outrider
