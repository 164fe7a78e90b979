#include "common/engine/torch/torch_model.h"

#define XXH_INLINE_ALL  // so that the plug-in needs no further library

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/version.h>
#include <xxhash.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/engine/backend.h"
#include "common/engine/torch/command.h"
#include "common/engine/torch/decoder.h"
#include "common/engine/torch/rank_group.h"
#include "common/spec/status.h"

namespace outrider::libtorch {
namespace {

// The model as a rank sees it: with its share of heads and columns. INVALID_ARGUMENT if there are no equal
// shares.
absl::StatusOr<DecoderConfig> ShareOf(const DecoderConfig& model, const RunnerOptions& options) {
  DecoderConfig share = model;
  const std::pair<int&, const char*> sizes[] = {{share.heads, "attention heads"},
                                                {share.kv_heads, "heads of keys and values"},
                                                {share.intermediate_size, "columns of the MLP"}};
  for (const auto& [size, what] : sizes) {
    if (size % options.parallel.size != 0) {
      return Invalid("--tensor-parallel ", options.parallel.size, ": must divide the ", size, " ", what,
                     " of ", options.model_dir);
    }
    size /= options.parallel.size;
  }
  return share;
}

LogitsView OnHost(const at::Tensor& logits) {
  return {logits.mutable_data_ptr<float>(), static_cast<int>(logits.size(0)),
          static_cast<int>(logits.size(1))};
}

// A weight matrix [n, k] on the runner's device.
class TorchMatrix final : public Matrix {
 public:
  // `runner` must outlive it.
  TorchMatrix(at::Tensor weights, StepRunner& runner) : weights_(std::move(weights)), runner_(runner) {}

  absl::Status Multiply(absl::Span<const float> x, absl::Span<float> y) override {
    return Try(runner_, "a matrix product", [&] {
      const at::Tensor rows = RowsOf(x, weights_.size(1)).to(weights_.options());
      const at::Tensor product = at::linear(rows, weights_).to(at::kCPU, at::kFloat).contiguous();
      std::copy_n(product.const_data_ptr<float>(), y.size(), y.begin());
      return absl::OkStatus();
    });
  }

 private:
  const at::Tensor weights_;
  StepRunner& runner_;
};

class TorchModel final : public Model {
 public:
  TorchModel(std::unique_ptr<StepRunner> runner, bool bfloat16)
      : runner_(std::move(runner)), bfloat16_(bfloat16) {}

  absl::Status Load(const DecoderConfig& model, const TensorSource& source, const RunnerOptions& options) {
    const ParallelOptions& parallel = options.parallel;
    const DecoderConfig spec = OUTRIDER_TRY(ShareOf(model, options));
    at::set_num_threads(options.threads);
    bits_depend_on_ =
        absl::StrCat("libtorch ", TORCH_VERSION, " on ", runner_->device().str(), ", ",
                     at::get_cpu_capability(), ", threads ", options.threads, ", ranks ", parallel.size);
    step_options_ = {options.block_size, spec.sliding_window,      spec.heads / spec.kv_heads,
                     Tensors(),          spec.embedding_columns(), spec.first_position};
    bytes_per_block_ = PagedCache::BlockBytes(spec, options.block_size, Tensors());
    if (parallel.size > 1) {
      // Join before loading the weights, which may take long: from here on, a rank that fails is noticed.
      ranks_ = OUTRIDER_TRY(RankGroup::Join(parallel, *runner_));
    }
    Weights weights =
        OUTRIDER_TRY(LoadWeights(source, model, {parallel.rank, parallel.size}, Tensors(), options.progress));
    if (ranks_ != nullptr) OUTRIDER_TRY(CheckAgreement(weights, options));
    kv_blocks_ = std::min(KvBlocks(spec, options, runner_->FreeMemory(), bytes_per_block_),
                          std::numeric_limits<int>::max() - 1);
    if (ranks_ != nullptr) kv_blocks_ = static_cast<int>(ranks_->Least(kv_blocks_));
    max_positions_ = static_cast<int>(
        std::min<int64_t>(spec.max_position_embeddings, int64_t{kv_blocks_} * options.block_size));
    PagedCache cache = OUTRIDER_TRY(PagedCache::Create(spec, kv_blocks_ + 1, options.block_size, Tensors()));
    if (parallel.rank == 0) observed_ = options.observe != nullptr;
    decoder_.emplace(spec, std::move(weights), std::move(cache), ranks_.get(),
                     observed_ ? options.observe : nullptr);
    return absl::OkStatus();
  }

  absl::StatusOr<LogitsView> Forward(absl::Span<const SequenceRows> batch, const PassOptions& pass) override {
    if (!cache_status_.ok()) return cache_status_;
    LogitsView view;
    const absl::Status status = Try(*runner_, "a forward pass", [&] {
      if (ranks_ != nullptr) ranks_->Send(EncodeForward(batch));
      at::Tensor hidden;
      const at::Tensor logits = Compute(batch, pass, &hidden);
      int64_t wanted = 0;  // a padded step has more
      for (const SequenceRows& sequence : batch) wanted += sequence.logit_rows;
      view = OnHost(runner_->ToHost(logits.narrow(0, 0, wanted)));
      if (!hidden.defined()) return absl::OkStatus();
      hidden_ = hidden.cpu();
      view.hidden = {hidden_.const_data_ptr<float>(), static_cast<int>(hidden_.size(0)),
                     static_cast<int>(hidden_.size(1))};
      return absl::OkStatus();
    });
    // If one rank lacks memory, the others have gone on without it.
    if (!status.ok()) return ranks_ == nullptr ? status : absl::InternalError(status.message());
    return view;
  }
  void CopyBlock(BlockId from, BlockId to) override {
    ChangeCache("copying a block", EncodeCopy(from, to),
                [&](PagedCache& cache) { cache.CopyBlock(from, to); });
  }
  void MoveSlots(absl::Span<const BlockId> blocks, absl::Span<const SlotMove> moves) override {
    if (moves.empty()) return;
    ChangeCache("moving slots", EncodeMoves(blocks, moves),
                [&](PagedCache& cache) { cache.MoveSlots(blocks, moves); });
  }
  absl::Status ReadSlot(BlockId block, int slot, absl::Span<float> values) override {
    if (ranks_ != nullptr) return absl::UnimplementedError("each rank has its share of the cache only");
    return Try(*runner_, "reading the cache", [&] {
      decoder_->cache().ReadSlot(block, slot, values);
      return absl::OkStatus();
    });
  }
  // Not with several ranks: rank 0 does not send hidden states to the others.
  bool has_hidden_states() const override { return ranks_ == nullptr; }
  absl::StatusOr<LogitsView> Project(absl::Span<const float> hidden) override {
    if (!has_hidden_states()) return Model::Project(hidden);
    LogitsView view;
    OUTRIDER_TRY(Try(*runner_, "projecting hidden states", [&] {
      const at::Tensor rows = RowsOf(hidden, decoder_->spec().hidden_size).to(runner_->device());
      view = OnHost(runner_->ToHost(decoder_->Logits(rows).contiguous()));
      return absl::OkStatus();
    }));
    return view;
  }
  absl::Status ReadEmbeddings(absl::Span<const TokenId> tokens, absl::Span<float> to) override {
    if (!has_hidden_states()) return Model::ReadEmbeddings(tokens, to);
    return Try(*runner_, "reading embeddings", [&] {
      const at::Tensor ids = at::tensor(std::vector<int64_t>(tokens.begin(), tokens.end()), at::kLong);
      const at::Tensor rows = decoder_->Embed(ids.to(runner_->device())).cpu().contiguous();
      std::copy_n(rows.const_data_ptr<float>(), to.size(), to.begin());
      return absl::OkStatus();
    });
  }
  absl::StatusOr<std::unique_ptr<Matrix>> LoadMatrix(const TensorView& weights) override {
    if (!has_hidden_states()) return Model::LoadMatrix(weights);
    at::Tensor copy;
    OUTRIDER_TRY(Try(*runner_, "copying a matrix", [&] {
      copy = ViewOf(weights).to(Tensors(), /*non_blocking=*/false, /*copy=*/true).contiguous();
      return absl::OkStatus();
    }));
    return std::make_unique<TorchMatrix>(std::move(copy), *runner_);
  }
  void Wake() override {}
  absl::Status Follow() override {
    std::vector<int64_t> numbers;
    while (true) {
      const absl::Status received = Try(*runner_, "following rank 0", [&] {
        numbers = ranks_->Receive();
        return absl::OkStatus();
      });
      if (!received.ok()) return absl::UnavailableError("rank 0 is gone");
      OUTRIDER_TRY(Try(*runner_, "following rank 0", [&] { return Execute(numbers); }));
    }
  }

  bool row_invariant() const override { return false; }
  bool tree_row_invariant() const override { return false; }
  std::string dtype() const override { return bfloat16_ ? "bfloat16" : "float32"; }
  std::string kernel_name() const override { return "torch"; }
  std::string bits_depend_on() const override { return bits_depend_on_; }
  GraphCaptures graph_captures() const override { return runner_->graph_captures(); }
  int kv_blocks() const override { return kv_blocks_; }
  int max_positions() const override { return max_positions_; }
  size_t bytes_per_block() const override { return bytes_per_block_; }
  size_t weight_bytes() const override { return decoder_->weights().bytes; }

 private:
  // Checks that all ranks have the same model and shapes.
  absl::Status CheckAgreement(const Weights& weights, const RunnerOptions& options) {
    // The hash is of weights that all ranks have whole: the embedding and the attention norms.
    uint64_t hash = 0;
    const auto add = [&hash](const at::Tensor& tensor) {
      const at::Tensor host = tensor.cpu();
      hash = XXH3_64bits_withSeed(host.const_data_ptr(), host.nbytes(), hash);
    };
    add(weights.embedding);
    for (const LayerWeights& layer : weights.layers) add(layer.attention_norm);
    for (const int64_t number : {static_cast<int64_t>(hash >> 1), static_cast<int64_t>(bytes_per_block_),
                                 int64_t{options.block_size}, int64_t{options.frequent_tokens}}) {
      const int64_t least = ranks_->Least(number), most = -ranks_->Least(-number);
      if (least == most) continue;
      return Invalid("--rank ", options.parallel.rank,
                     ": the ranks differ in --model, --dtype, --block-size or "
                     "--frequent-tokens");
    }
    return absl::OkStatus();
  }

  Step ToStep(absl::Span<const SequenceRows> batch, const PassOptions& pass) const {
    // A graph is found by shape alone, and passes of fewer layers have the same shapes as full ones.
    if (pass.layers == 0 && runner_->PrefersFewShapes()) {
      if (auto step = MakeDecodeStep(batch, kv_blocks_, step_options_)) {
        step->is_decode = !observed_;
        return *std::move(step);
      }
    }
    return MakeStep(batch, step_options_, pass);
  }

  // The wanted logits on the device. `hidden` is set as by Decoder::Forward, and may be null.
  at::Tensor Compute(absl::Span<const SequenceRows> batch, const PassOptions& pass,
                     at::Tensor* hidden = nullptr) {
    Step step = ToStep(batch, pass);
    return runner_->Compute(step, [&](const Step& made) { return decoder_->Forward(made, hidden); });
  }

  // Changes the cache, in this rank and, by sending `numbers`, in the others.
  void ChangeCache(absl::string_view what, absl::Span<const int64_t> numbers,
                   absl::FunctionRef<void(PagedCache& cache)> change) {
    const absl::Status status = Try(*runner_, what, [&] {
      if (ranks_ != nullptr) ranks_->Send(numbers);
      change(decoder_->cache());
      return absl::OkStatus();
    });
    // Whatever the reason, the cache does not hold what it should.
    if (!status.ok()) cache_status_.Update(absl::InternalError(status.message()));
  }

  // Executes a command that rank 0 sent.
  absl::Status Execute(absl::Span<const int64_t> numbers) {
    const Command command = OUTRIDER_TRY(Command::Decode(numbers));
    if (!command.batch.empty()) {
      runner_->ToHost(Compute(command.batch, PassOptions()));
    } else if (!command.moves.empty()) {
      decoder_->cache().MoveSlots(command.blocks, command.moves);
    } else {
      decoder_->cache().CopyBlock(command.from, command.to);
    }
    return absl::OkStatus();
  }

  at::TensorOptions Tensors() const {
    return at::TensorOptions(bfloat16_ ? at::kBFloat16 : at::kFloat).device(runner_->device());
  }

  // Null: this process has all of the model. Destroyed after the runner, because NCCL waits until the graphs
  // that hold its operations are destroyed.
  std::unique_ptr<RankGroup> ranks_;
  const std::unique_ptr<StepRunner> runner_;
  const bool bfloat16_;
  StepOptions step_options_;
  int kv_blocks_ = 0;
  std::string bits_depend_on_;
  int max_positions_ = 0;
  size_t bytes_per_block_ = 0;
  bool observed_ = false;           // by RunnerOptions::observe; no step is captured then
  at::Tensor hidden_;               // the last pass's hidden states, on the host
  absl::Status cache_status_;       // the first failure to change the cache, for Forward to report
  std::optional<Decoder> decoder_;  // its cache has one extra block, which no sequence uses
};

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> MakeTorchModel(const DecoderConfig& spec, const TensorSource& weights,
                                                      std::optional<int> cuda_device,
                                                      const RunnerOptions& options) {
  absl::StatusOr<std::unique_ptr<StepRunner>> runner = std::make_unique<CpuRunner>();
  if (cuda_device.has_value()) runner = LoadCudaRunner(*cuda_device, options.role == ModelRole::kDraft);
  if (!runner.ok()) {
    return absl::Status(runner.status().code(), absl::StrCat("--engine torch --device ", options.device, ": ",
                                                             runner.status().message()));
  }
  return MakeTorchModel(spec, weights, *std::move(runner), options);
}

absl::StatusOr<std::unique_ptr<Model>> MakeTorchModel(const DecoderConfig& spec, const TensorSource& weights,
                                                      std::unique_ptr<StepRunner> runner,
                                                      const RunnerOptions& options) {
  const bool bfloat16 =
      options.dtype == "bfloat16" || (options.dtype == "auto" && runner->device().is_cuda());
  StepRunner& device = *runner;
  auto model = std::make_unique<TorchModel>(std::move(runner), bfloat16);
  OUTRIDER_TRY(Try(device, absl::StrCat("loading ", options.model_dir),
                   [&] { return model->Load(spec, weights, options); }));
  return model;
}

}  // namespace outrider::libtorch
