#include "common/engine/torch/torch_model.h"

#define XXH_INLINE_ALL  // so that the plug-in needs no further library

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/version.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/engine/cuda/can_run.h"
#include "common/engine/cuda/step_plan.h"
#include "common/engine/kv_size.h"
#include "common/engine/torch/command.h"
#include "common/engine/torch/cpu_runner.h"
#include "common/engine/torch/cuda_library.h"
#include "common/engine/torch/decider.h"
#include "common/engine/torch/torch_matrix.h"
#include "common/engine/torch/try.h"

namespace outrider::libtorch {
namespace {

// The model as a rank sees it: with its share of heads and columns. INVALID_ARGUMENT if there are no equal
// shares.
absl::StatusOr<DecoderSpec> ShareOf(const DecoderSpec& model, const RunnerOptions& options) {
  DecoderSpec share = model;
  const std::pair<int&, const char*> sizes[] = {{share.heads, "attention heads"},
                                                {share.kv_heads, "heads of keys and values"},
                                                {share.intermediate_size, "columns of the MLP"}};
  for (const auto& [size, what] : sizes) {
    if (size % options.parallel.size != 0) {
      return absl::InvalidArgumentError(absl::StrCat("--tensor-parallel ", options.parallel.size,
                                                     ": must divide the ", size, " ", what, " of ",
                                                     options.model_dir));
    }
    size /= options.parallel.size;
  }
  return share;
}

// The rows of a batch's logits: those of sequences with a task, then the others.
at::Tensor TasksFirst(absl::Span<const SequenceRows> batch) {
  std::vector<int64_t> order, of_others;
  int64_t row = 0;
  for (const SequenceRows& sequence : batch) {
    std::vector<int64_t>& rows = sequence.task != nullptr ? order : of_others;
    for (int i = 0; i < sequence.logit_rows; ++i) rows.push_back(row++);
  }
  order.insert(order.end(), of_others.begin(), of_others.end());
  return at::tensor(order, at::kLong);
}

LogitsView OnHost(const at::Tensor& logits) {
  return {logits.mutable_data_ptr<float>(), static_cast<int>(logits.size(0)),
          static_cast<int>(logits.size(1))};
}

absl::StatusOr<std::unique_ptr<StepRunner>> RunnerFor(std::optional<int> cuda_device, bool high_priority) {
  if (cuda_device.has_value()) return LoadCudaRunner(*cuda_device, high_priority);
  return std::make_unique<CpuRunner>();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> TorchModel::Create(const DecoderSpec& spec,
                                                          const TensorSource& weights,
                                                          std::optional<int> cuda_device,
                                                          const RunnerOptions& options) {
  absl::StatusOr<std::unique_ptr<StepRunner>> runner = RunnerFor(cuda_device, options.high_priority);
  if (!runner.ok()) {
    return absl::Status(runner.status().code(), absl::StrCat("--engine torch --device ", options.device, ": ",
                                                             runner.status().message()));
  }
  return Create(spec, weights, *std::move(runner), options);
}

absl::StatusOr<std::unique_ptr<Model>> TorchModel::Create(const DecoderSpec& spec,
                                                          const TensorSource& weights,
                                                          std::unique_ptr<StepRunner> runner,
                                                          const RunnerOptions& options) {
  const bool bfloat16 =
      options.dtype == "bfloat16" || (options.dtype == "auto" && runner->device().is_cuda());
  std::unique_ptr<TorchModel> model(new TorchModel(std::move(runner), bfloat16));
  const absl::Status status = Try(*model->runner_, absl::StrCat("loading ", options.model_dir),
                                  [&] { return model->Load(spec, weights, options); });
  if (!status.ok()) return status;
  return model;
}

absl::Status TorchModel::Load(const DecoderSpec& model, const TensorSource& source,
                              const RunnerOptions& options) {
  const ParallelOptions& parallel = options.parallel;
  const absl::StatusOr<DecoderSpec> shared = ShareOf(model, options);
  if (!shared.ok()) return shared.status();
  const DecoderSpec& spec = *shared;
  at::set_num_threads(options.threads);
  bits_depend_on_ =
      absl::StrCat("libtorch ", TORCH_VERSION, " on ", runner_->device().str(), ", ",
                   at::get_cpu_capability(), ", threads ", options.threads, ", ranks ", parallel.size);
  vocab_size_ = spec.vocab_size;
  step_options_ = {options.block_size, spec.sliding_window,      spec.heads / spec.kv_heads,
                   Tensors(),          spec.embedding_columns(), spec.first_position};
  bytes_per_block_ = PagedCache::BlockBytes(spec, options.block_size, Tensors());
  if (parallel.size > 1) {
    // Before the weights, which may take long: from here on a rank that fails is noticed.
    absl::StatusOr<std::unique_ptr<RankGroup>> ranks = RankGroup::Join(parallel, *runner_);
    if (!ranks.ok()) return ranks.status();
    ranks_ = *std::move(ranks);
  }
  absl::StatusOr<Weights> weights =
      LoadWeights(source, model, {parallel.rank, parallel.size}, Tensors(), options.progress);
  if (!weights.ok()) return weights.status();
  if (ranks_ != nullptr) {
    if (absl::Status status = CheckAgreement(*weights, options); !status.ok()) return status;
  }
  kv_blocks_ = std::min(KvBlocks(spec, options, runner_->FreeMemory(), bytes_per_block_),
                        std::numeric_limits<int>::max() - 1);
  if (ranks_ != nullptr) kv_blocks_ = static_cast<int>(ranks_->Least(kv_blocks_));
  max_positions_ = static_cast<int>(
      std::min<int64_t>(spec.max_position_embeddings, int64_t{kv_blocks_} * options.block_size));
  absl::StatusOr<PagedCache> cache = PagedCache::Create(spec, kv_blocks_ + 1, options.block_size, Tensors());
  if (!cache.ok()) return cache.status();
  if (parallel.rank == 0) observed_ = options.observe != nullptr;
  decoder_.emplace(spec, *std::move(weights), *std::move(cache), ranks_.get(),
                   observed_ ? options.observe : nullptr);
  return absl::OkStatus();
}

absl::Status TorchModel::CheckAgreement(const Weights& weights, const RunnerOptions& options) {
  // What all ranks have whole: the embedding and the norms.
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
    return absl::InvalidArgumentError(absl::StrCat("--rank ", options.parallel.rank,
                                                   ": the ranks differ in --model, --dtype, --block-size or "
                                                   "--frequent-tokens"));
  }
  return absl::OkStatus();
}

absl::StatusOr<LogitsView> TorchModel::Forward(absl::Span<const SequenceRows> batch,
                                               const PassOptions& pass) {
  if (!cache_status_.ok()) return cache_status_;
  LogitsView view;
  const absl::Status status = Try(*runner_, "a forward pass", [&] {
    if (ranks_ != nullptr) ranks_->Send(EncodeForward(batch));
    at::Tensor hidden;
    const at::Tensor logits = Compute(batch, pass, /*tokens=*/{}, &hidden);
    view = OnHost(runner_->ToHost(Decide(batch, pass, logits)));
    if (!hidden.defined()) return absl::OkStatus();
    hidden_ = hidden.cpu();
    view.hidden = {hidden_.const_data_ptr<float>(), static_cast<int>(hidden_.size(0)),
                   static_cast<int>(hidden_.size(1))};
    return absl::OkStatus();
  });
  // Where one rank lacks memory, the others have gone on without it.
  if (!status.ok()) return ranks_ == nullptr ? status : absl::InternalError(status.message());
  return view;
}

absl::StatusOr<LogitsView> TorchModel::Project(absl::Span<const float> hidden) {
  if (!has_hidden_states()) return Model::Project(hidden);
  LogitsView view;
  const absl::Status status = Try(*runner_, "projecting hidden states", [&] {
    const at::Tensor rows = RowsOf(hidden, decoder_->spec().hidden_size).to(runner_->device());
    view = OnHost(runner_->ToHost(decoder_->Logits(rows).contiguous()));
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return view;
}

absl::Status TorchModel::ReadEmbeddings(absl::Span<const TokenId> tokens, absl::Span<float> to) {
  if (!has_hidden_states()) return Model::ReadEmbeddings(tokens, to);
  return Try(*runner_, "reading embeddings", [&] {
    const at::Tensor ids = at::tensor(std::vector<int64_t>(tokens.begin(), tokens.end()), at::kLong);
    const at::Tensor rows = decoder_->Embed(ids.to(runner_->device())).cpu().contiguous();
    std::copy_n(rows.const_data_ptr<float>(), to.size(), to.begin());
    return absl::OkStatus();
  });
}

absl::StatusOr<std::unique_ptr<Matrix>> TorchModel::LoadMatrix(const TensorView& weights) {
  if (!has_hidden_states()) return Model::LoadMatrix(weights);
  return TorchMatrix::Create(weights, Tensors(), *runner_);
}

bool TorchModel::CanRun(const DeviceTask& task) const {
  return runner_->decisions() != nullptr && ranks_ == nullptr && vocab_size_ <= cuda::kMaxVocab &&
         cuda::CanRun(task, vocab_size_);
}

at::Tensor TorchModel::Compute(absl::Span<const SequenceRows> batch, const PassOptions& pass,
                               const at::Tensor& tokens, at::Tensor* hidden) {
  Step step = ToStep(batch, pass);
  if (pass.resume_after > 0) {
    step.first_layer = pass.resume_after;
    step.streams = StreamsBefore(pass.resume_after, batch);
  }
  if (tokens.defined()) step.tokens = tokens.narrow(0, 0, step.tokens.size(0));
  return runner_->Compute(step, [&](const Step& made) { return decoder_->Forward(made, hidden); });
}

at::Tensor TorchModel::StreamsBefore(int layer, absl::Span<const SequenceRows> batch) {
  const int64_t hidden_size = decoder_->spec().hidden_size;
  std::vector<SequenceRows> others = NotResumed(batch, decoder_->spec().hidden_size);
  for (SequenceRows& sequence : others) sequence.hidden_rows = static_cast<int>(sequence.tokens.size());
  const std::array<int, 1> taps = {layer};
  at::Tensor computed;
  Compute(others, {.layers = layer, .taps = taps}, /*tokens=*/{}, &computed);
  // Beside the tap, the last columns, there is what a head would multiply.
  computed = computed.narrow(1, hidden_size, hidden_size);
  std::vector<at::Tensor> streams;
  int64_t first = 0;
  for (size_t i = 0; i < batch.size(); ++i) {
    const int64_t count = static_cast<int64_t>(others[i].tokens.size());
    streams.push_back(RowsOf(batch[i].resumed, hidden_size).to(runner_->device()));
    streams.push_back(computed.narrow(0, first, count));
    first += count;
  }
  return at::cat(streams);
}

at::Tensor TorchModel::Decide(absl::Span<const SequenceRows> batch, const PassOptions& pass,
                              const at::Tensor& logits) {
  int64_t host_rows = 0, tasks = 0;
  for (const SequenceRows& sequence : batch) {
    if (sequence.task != nullptr) ++tasks;
    if (sequence.task == nullptr) host_rows += sequence.logit_rows;
  }
  if (tasks == 0) return logits.narrow(0, 0, host_rows);
  const std::array<BlockId, 1> spare = {kv_blocks_};
  const cuda::StepPlan plan = cuda::PlanStep(batch, step_options_.block_size, spare);
  // A copy where some rows are the host's: further passes write where the first one did.
  const at::Tensor ordered =
      host_rows == 0 ? logits : logits.index_select(0, TasksFirst(batch).to(logits.device()));
  Decider decider(*runner_->decisions(), plan, spare[0], logits.device());
  decider.First(ordered);
  const TokenId any = 0;  // the token is on the device
  for (size_t further = 0; further < plan.draft_passes.size(); ++further) {
    std::vector<SequenceRows> rows;
    for (const cuda::AttentionSequence& sequence : plan.draft_passes[further].sequences) {
      rows.push_back(
          {.tokens = {&any, 1}, .position = sequence.length - 1, .blocks = sequence.blocks, .logit_rows = 1});
    }
    decider.Next(static_cast<int>(further) + 1,
                 Compute(rows, {.layers = pass.layers}, decider.next_tokens()));
  }
  decider.Finish();
  return ordered.narrow(0, host_rows == 0 ? 0 : ordered.size(0) - host_rows, host_rows);
}

Step TorchModel::ToStep(absl::Span<const SequenceRows> batch, const PassOptions& pass) const {
  // Passes of some layers have the shapes of others.
  if (pass.layers == 0 && pass.resume_after == 0 && runner_->PrefersFewShapes()) {
    if (auto step = MakeDecodeStep(batch, kv_blocks_, step_options_)) {
      step->is_decode = !observed_;
      return *std::move(step);
    }
  }
  return MakeStep(batch, step_options_, pass);
}

void TorchModel::CopyBlock(BlockId from, BlockId to) {
  ChangeCache("copying a block", EncodeCopy(from, to), [&](PagedCache& cache) { cache.CopyBlock(from, to); });
}

void TorchModel::MoveSlots(absl::Span<const BlockId> blocks, absl::Span<const SlotMove> moves) {
  if (moves.empty()) return;
  ChangeCache("moving slots", EncodeMoves(blocks, moves),
              [&](PagedCache& cache) { cache.MoveSlots(blocks, moves); });
}

void TorchModel::ChangeCache(absl::string_view what, absl::Span<const int64_t> numbers,
                             absl::FunctionRef<void(PagedCache& cache)> change) {
  const absl::Status status = Try(*runner_, what, [&] {
    if (ranks_ != nullptr) ranks_->Send(numbers);
    change(decoder_->cache());
    return absl::OkStatus();
  });
  // Whatever the reason, the cache is not what it is taken for.
  if (!status.ok()) cache_status_.Update(absl::InternalError(status.message()));
}

absl::Status TorchModel::Follow() {
  std::vector<int64_t> numbers;
  absl::Status status;
  while (status.ok()) {
    status = Try(*runner_, "following rank 0", [&] {
      numbers = ranks_->Receive();
      return absl::OkStatus();
    });
    if (!status.ok()) return absl::UnavailableError("rank 0 is gone");
    status = Try(*runner_, "following rank 0", [&] { return Obey(numbers); });
  }
  return status;
}

absl::Status TorchModel::Obey(absl::Span<const int64_t> numbers) {
  const absl::StatusOr<Command> command = Command::Decode(numbers);
  if (!command.ok()) return command.status();
  if (!command->batch().empty()) {
    runner_->ToHost(Compute(command->batch(), PassOptions()));
  } else if (!command->moves().empty()) {
    decoder_->cache().MoveSlots(command->blocks(), command->moves());
  } else {
    decoder_->cache().CopyBlock(command->from(), command->to());
  }
  return absl::OkStatus();
}

absl::Status TorchModel::ReadSlot(BlockId block, int slot, absl::Span<float> values) {
  if (ranks_ != nullptr) return absl::UnimplementedError("each rank has its share of the cache only");
  return Try(*runner_, "reading the cache", [&] {
    decoder_->cache().ReadSlot(block, slot, values);
    return absl::OkStatus();
  });
}

}  // namespace outrider::libtorch
