#include "common/engine/cuda/cuda_model.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/engine/backend.h"
#include "common/engine/cuda/decide_kernels.h"
#include "common/engine/cuda/decoder_layers.h"

namespace outrider::cuda {
namespace {

// Plans of attention, enough for the passes of a step: the first one, and one per further drafted token.
constexpr int kPlans = kMaxDraftTokens + 1;

// The most device memory that a graph can plausibly take. A larger measurement includes what others on this
// GPU allocated meanwhile.
constexpr size_t kMaxGraphBytes = size_t{16} << 20;

absl::Status CheckShape(const DecoderConfig& spec, const std::string& model_dir) {
  const auto refuse = [&](absl::string_view field, int value, absl::string_view rule) {
    return absl::InvalidArgumentError(
        absl::StrCat(model_dir, "/config.json: ", field, ": ", value, ": ", rule, " with --device cuda"));
  };
  if (spec.head_dim != 64 && spec.head_dim != 128)
    return refuse("head_dim", spec.head_dim, "must be 64 or 128");
  const std::pair<const char*, int> sizes[] = {{"vocab_size", spec.vocab_size},
                                               {"hidden_size", spec.hidden_size},
                                               {"intermediate_size", spec.intermediate_size}};
  for (const auto& [field, value] : sizes) {
    if (value % 16 != 0) return refuse(field, value, "must be a multiple of 16");
  }
  if (spec.logit_columns() % 16 != 0) {
    return absl::InvalidArgumentError(absl::StrCat("--frequent-tokens ", spec.logit_columns(),
                                                   ": must be a multiple of 16 with --device cuda"));
  }
  if (spec.vocab_size > kMaxVocab)
    return refuse("vocab_size", spec.vocab_size, absl::StrCat("must be at most ", kMaxVocab));
  if (spec.hidden_size > kMaxNormed)
    return refuse("hidden_size", spec.hidden_size, absl::StrCat("must be at most ", kMaxNormed));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> CudaModel::Create(const DecoderConfig& spec,
                                                         const TensorSource& weights, int device,
                                                         const RunnerOptions& options) {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess || device >= devices) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--device cuda:", device, ": ",
        error == cudaSuccess ? absl::StrCat("this machine has ", devices, " GPUs")
                             : absl::StrCat("no GPU can be used here: ", cudaGetErrorString(error))));
  }
  std::unique_ptr<CudaModel> model(new CudaModel(spec, device, options));
  if (absl::Status status = model->Load(weights); !status.ok()) return status;
  return model;
}

absl::Status CudaModel::Load(const TensorSource& source) {
  if (absl::Status status = CheckShape(spec_, options_.model_dir); !status.ok()) return status;
  // The current device is per thread, and Forward runs on another thread than Load.
  absl::Status status = ToStatus(cudaSetDevice(device_), "choosing the device");
  int lowest = 0, highest = 0;
  if (status.ok()) status = ToStatus(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "starting");
  if (status.ok()) {
    const int priority = options_.role == ModelRole::kDraft ? highest : lowest;
    status = ToStatus(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority), "starting");
  }
  if (!status.ok()) return status;

  status = Assign(Matmul::Create(operand_, options_.matmul_algorithms, stream_), matmul_);
  if (!status.ok()) return status;
  Weights weights;
  status = Assign(LoadWeights(source, spec_, operand_, *matmul_, stream_, options_.progress), weights);
  if (status.ok()) status = matmul_->Store();
  if (!status.ok()) return status;

  max_rows_ = RowCapacity(options_.max_batch_rows);
  // Allocate everything else before the KV pool, so that the pool takes its share of what is left. The pool
  // limits the length of sequences if its size is given.
  const int64_t most_positions = options_.kv_blocks > 0 ? int64_t{options_.kv_blocks} * options_.block_size
                                                        : std::numeric_limits<int64_t>::max();
  max_positions_ = static_cast<int>(std::min<int64_t>(spec_.max_position_embeddings, most_positions));
  status = AllocateStepMemory();
  const AttentionShape shape = AttentionShapeOf(spec_, options_.block_size);
  if (status.ok()) {
    status = Assign(Attention::Create(shape, AttentionCapacity(shape, max_rows_, max_positions_),
                                      std::max(kPlans, max_rows_ / kLongRows + 1)),
                    attention_);
  }
  if (!status.ok()) return status;
  status = Assign(DecoderLayers::Create(spec_, std::move(weights), operand_, *matmul_, *attention_,
                                        {.block_size = options_.block_size,
                                         .max_rows = max_rows_ + kMaxIdleRows,
                                         .max_positions = max_positions_,
                                         .observe = options_.observe},
                                        stream_),
                  layers_);
  if (!status.ok()) return status;
  return WarmUpAndAllocateCache();
}

absl::Status CudaModel::WarmUpAndAllocateCache() {
  const WarmUpLimits limits{.rows = options_.max_batch_rows, .positions = max_positions_};
  const std::vector<WarmUpStep> common = CommonSteps(limits, options_.role);
  // Start with the spare block only: the memory of kernels and graphs is then known before the pool takes its
  // share.
  const auto resize = [&](int kv_blocks) {
    kv_blocks_ = kv_blocks;
    spare_ = {kv_blocks};
    return layers_->AllocateCache(kv_blocks);
  };
  absl::Status status = resize(0);
  if (status.ok()) status = Run(DirectSteps(limits), StepGraphs::Capture::kNever);
  size_t free_bytes = 0;
  if (status.ok() && options_.kv_blocks == 0) status = Assign(FreeForPool(common), free_bytes);
  if (status.ok()) {
    const int wanted = KvBlocks(spec_, options_, free_bytes, layers_->bytes_per_block());
    status = resize(std::min(wanted, MostBlocks(attention_->shape())));
  }
  if (!status.ok()) return status;
  max_positions_ =
      static_cast<int>(std::min<int64_t>(max_positions_, int64_t{kv_blocks_} * options_.block_size));
  return Run(common, StepGraphs::Capture::kAtOnce);
}

absl::StatusOr<size_t> CudaModel::FreeForPool(const std::vector<WarmUpStep>& common) {
  size_t before = 0, after = 0, all_bytes = 0;
  absl::Status status = ToStatus(cudaMemGetInfo(&before, &all_bytes), "asking for free memory");
  if (status.ok() && !common.empty()) status = Run({common.back()}, StepGraphs::Capture::kAtOnce);
  if (status.ok()) status = ToStatus(cudaMemGetInfo(&after, &all_bytes), "asking for free memory");
  if (!status.ok()) return status;
  graphs_.Drop();  // they use the pool that goes away
  const size_t graphs = kMaxGraphs * std::min(before - std::min(before, after), kMaxGraphBytes);
  return before - std::min(before, graphs);
}

absl::Status CudaModel::Run(const std::vector<WarmUpStep>& steps, StepGraphs::Capture capture) {
  if (options_.observe) return absl::OkStatus();  // no observer wants these steps
  const StepGraphs::Capture usual = std::exchange(capture_, capture);
  for (const WarmUpStep& step : steps) {
    MadeUpBatch batch(step, options_.block_size);
    if (const auto logits = Forward(batch.rows(), {}); !logits.ok()) return logits.status();
  }
  capture_ = usual;
  return absl::OkStatus();
}

absl::Status CudaModel::AllocateStepMemory() {
  // The largest steps: every row has a draft to verify, or proposes in every further pass.
  const int host_rows = std::min(max_rows_, kMaxLogitRows), logit_rows = host_rows + kMaxIdleRows;
  const StepShape verifies{
      .rows = max_rows_, .logit_rows = logit_rows, .tasks = max_rows_, .proposes = false};
  const StepShape proposes{.rows = max_rows_,
                           .logit_rows = logit_rows,
                           .tasks = max_rows_,
                           .proposes = true,
                           .draft_passes = kMaxDraftTokens - 1};
  StepInputs inputs;
  StepOutputs outputs;
  const size_t in = std::max(LayOut(verifies, nullptr, inputs), LayOut(proposes, nullptr, inputs));
  const size_t out = std::max(LayOut(verifies, nullptr, outputs), LayOut(proposes, nullptr, outputs));
  const size_t rows = static_cast<size_t>(max_rows_), wanted = static_cast<size_t>(logit_rows);
  const size_t row_bytes = static_cast<size_t>(spec_.logit_columns()) * sizeof(float);
  absl::Status status = Assign(MirroredMemory::Allocate(in, "steps' input"), inputs_);
  if (status.ok()) status = Assign(MirroredMemory::Allocate(out, "steps' output"), outputs_);
  if (status.ok()) {
    status = Assign(
        PinnedMemory::Allocate(static_cast<size_t>(host_rows) * row_bytes, "logits (--max-batch-tokens)"),
        host_logits_);
  }
  if (status.ok()) {
    status = AllocateAll({{logits_, wanted * row_bytes, "logits (--max-batch-tokens)"},
                          {shaped_, wanted * sizeof(ShapedRow), "shaped rows"},
                          {next_tokens_, rows * sizeof(int32_t), "drafted tokens"},
                          {races_, wanted * sizeof(int32_t), "races"}});
  }
  if (!status.ok()) return status;
  const std::vector<TokenId>& tokens = spec_.head_tokens;
  if (!tokens.empty()) {
    const size_t bytes = tokens.size() * sizeof(TokenId);
    status = AllocateAll({{head_tokens_, bytes, "tokens of the head"}});
    if (status.ok()) {
      status = ToStatus(
          cudaMemcpyAsync(head_tokens_.data(), tokens.data(), bytes, cudaMemcpyHostToDevice, stream_),
          "uploading the tokens of the head");
    }
    if (!status.ok()) return status;
  }
  // Idle rows of a draft pass embed whatever is here, so it must be a token id.
  return ToStatus(cudaMemsetAsync(next_tokens_.data(), 0, next_tokens_.bytes(), stream_), "clearing tokens");
}

CudaModel::~CudaModel() {
  cudaSetDevice(device_);
  graphs_.Drop();
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

void CudaModel::MoveSlots(absl::Span<const BlockId> blocks, absl::Span<const SlotMove> moves) {
  cudaSetDevice(device_);
  layers_->MoveSlots(blocks, moves);
}

void CudaModel::CopyBlock(BlockId from, BlockId to) {
  cudaSetDevice(device_);
  layers_->CopyBlock(from, to);
}

absl::Status CudaModel::ReadSlot(BlockId block, int slot, absl::Span<float> values) {
  if (absl::Status status = ToStatus(cudaSetDevice(device_), "choosing the device"); !status.ok())
    return status;
  return layers_->ReadSlot(block, slot, values);
}

absl::StatusOr<LogitsView> CudaModel::Forward(absl::Span<const SequenceRows> batch,
                                              const PassOptions& /*pass*/) {
  absl::Status status = ToStatus(cudaSetDevice(device_), "choosing the device");
  if (!status.ok()) return status;
  const StepPlan plan = PlanStep(batch, options_.block_size, spare_);
  const StepShape shape = ShapeOf(plan);
  StepInputs inputs;
  LayOut(shape, inputs_.host(), inputs);
  WriteInputs(plan, shape, layers_->spare_block(), inputs);
  const std::optional<GraphShape> captured =
      GraphOf(plan, shape, attention_->shape(), attention_->capacity());
  cudaGraphExec_t graph = nullptr;
  if (captured) {
    graph = graphs_.Find(*captured, capture_, stream_, [&] { return EnqueueCaptured(*captured); });
  }
  status = graph != nullptr ? Replay(plan, *captured, graph) : RunEager(plan, shape);
  if (!status.ok()) return status;

  const size_t row_bytes = static_cast<size_t>(spec_.logit_columns()) * sizeof(float);
  const size_t host_rows = static_cast<size_t>(plan.host_rows);
  if (host_rows > 0) {
    const size_t before = (plan.logit_rows.size() - host_rows) * row_bytes;
    status = ToStatus(cudaMemcpyAsync(host_logits_.data(), logits_.data() + before, host_rows * row_bytes,
                                      cudaMemcpyDeviceToHost, stream_),
                      "copying logits");
    if (!status.ok()) return status;
  }
  status = ToStatus(cudaStreamSynchronize(stream_), "waiting for a step");
  if (!status.ok()) return status;
  StepOutputs outputs;
  LayOut(shape, outputs_.host(), outputs);
  ReadOutputs(plan, shape, outputs);
  return LogitsView{host_logits_.as<float>(), plan.host_rows, spec_.logit_columns()};
}

absl::Status CudaModel::Replay(const StepPlan& plan, const GraphShape& shape, cudaGraphExec_t graph) {
  attention_->Clear();
  absl::Status status = attention_->Add(shape.first, plan.first.sequences).status();
  for (const PassPlan& pass : plan.draft_passes) {
    if (status.ok()) status = attention_->Add(shape.draft, pass.sequences).status();
  }
  if (status.ok()) status = attention_->Upload(stream_);
  return status.ok() ? ToStatus(cudaGraphLaunch(graph, stream_), "launching a step") : status;
}

absl::Status CudaModel::EnqueueCaptured(const GraphShape& shape) {
  size_t plan = 0;
  for (int pass = 0; pass <= shape.step.draft_passes; ++pass) {
    const AttentionSize& size = pass == 0 ? shape.first : shape.draft;
    const absl::Status status = EnqueuePass(shape.step, pass, {{.plan = plan, .size = size, .first_row = 0}});
    if (!status.ok()) return status;
    plan += Attention::PlanBytes(size);
  }
  return EnqueueOutputs(shape.step);
}

absl::Status CudaModel::RunEager(const StepPlan& plan, const StepShape& shape) {
  attention_->Clear();
  for (int pass = 0; pass <= shape.draft_passes; ++pass) {
    absl::StatusOr<std::vector<PlannedAttention>> parts =
        UploadAttention(pass == 0 ? plan.first : plan.draft_passes[static_cast<size_t>(pass - 1)]);
    if (!parts.ok()) return parts.status();
    const absl::Status status = EnqueuePass(shape, pass, *std::move(parts));
    if (!status.ok()) return status;
  }
  return EnqueueOutputs(shape);
}

absl::StatusOr<std::vector<PlannedAttention>> CudaModel::UploadAttention(const PassPlan& pass) {
  const absl::StatusOr<std::vector<AttentionPass>> cut =
      CutIntoPasses(attention_->shape(), pass.sequences, attention_->capacity());
  if (!cut.ok()) return cut.status();
  std::vector<PlannedAttention> parts;
  size_t bytes = 0;
  for (const AttentionPass& part : *cut) {
    const AttentionSize size = SizeOf(attention_->shape(), part.sequences);
    parts.push_back({.plan = 0, .size = size, .first_row = part.first_row});
    bytes += Attention::PlanBytes(size);
  }
  if (!attention_->HasRoom(bytes)) {
    // Earlier passes may still read their plans.
    const absl::Status status = ToStatus(cudaStreamSynchronize(stream_), "waiting for a pass");
    if (!status.ok()) return status;
    attention_->Clear();
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    const absl::Status status = Assign(attention_->Add(parts[i].size, (*cut)[i].sequences), parts[i].plan);
    if (!status.ok()) return status;
  }
  const absl::Status status = attention_->Upload(stream_);
  if (!status.ok()) return status;
  return parts;
}

absl::Status CudaModel::EnqueuePass(const StepShape& shape, int pass,
                                    std::vector<PlannedAttention> attention) {
  return pass == 0 ? EnqueueFirst(shape, std::move(attention))
                   : EnqueueDraft(shape, pass, std::move(attention));
}

absl::Status CudaModel::EnqueueFirst(const StepShape& shape, std::vector<PlannedAttention> attention) {
  StepInputs inputs;
  const size_t bytes = LayOut(shape, inputs_.device(), inputs);
  absl::Status status = inputs_.ToDevice(bytes, stream_);
  if (!status.ok()) return status;
  status = layers_->Enqueue({.rows = shape.rows,
                             .tokens = inputs.tokens,
                             .places = inputs.places,
                             .attention = std::move(attention),
                             .logit_count = shape.logit_rows,
                             .logit_rows = inputs.logit_rows,
                             .logits = logits_.as<float>()});
  if (!status.ok() || shape.tasks == 0) return status;
  status = ToStatus(LaunchShape(logits_.as<float>(), spec_.logit_columns(), shape.logit_rows,
                                inputs.shape_params, shaped_.as<ShapedRow>(), stream_),
                    "shaping rows");
  if (!status.ok()) return status;
  if (shape.proposes) return EnqueueProposal(shape, 0);
  StepOutputs outputs;
  LayOut(shape, outputs_.device(), outputs);
  return ToStatus(LaunchVerify(logits_.as<float>(), spec_.logit_columns(), shape.tasks,
                               std::min(kMaxDraftTokens, shape.logit_rows - 1), shaped_.as<ShapedRow>(),
                               inputs.verify, inputs.drafted, inputs.q_ids, inputs.q_weights,
                               races_.as<int32_t>(), outputs.verdicts, stream_),
                  "judging drafts");
}

absl::Status CudaModel::EnqueueDraft(const StepShape& shape, int pass,
                                     std::vector<PlannedAttention> attention) {
  StepInputs inputs;
  LayOut(shape, inputs_.device(), inputs);
  absl::Status status = layers_->Enqueue({.rows = shape.tasks,
                                          .tokens = next_tokens_.as<int32_t>(),
                                          .places = inputs.draft_places + (pass - 1) * shape.tasks,
                                          .attention = std::move(attention),
                                          .logit_count = shape.tasks,
                                          .logit_rows = nullptr,
                                          .logits = logits_.as<float>()});
  if (!status.ok()) return status;
  status = ToStatus(LaunchShape(logits_.as<float>(), spec_.logit_columns(), shape.tasks, inputs.shape_params,
                                shaped_.as<ShapedRow>(), stream_),
                    "shaping rows");
  return status.ok() ? EnqueueProposal(shape, pass) : status;
}

absl::Status CudaModel::EnqueueProposal(const StepShape& shape, int step) {
  StepInputs inputs;
  StepOutputs outputs;
  LayOut(shape, inputs_.device(), inputs);
  LayOut(shape, outputs_.device(), outputs);
  const int at = step * shape.tasks;
  return ToStatus(LaunchPropose(logits_.as<float>(), spec_.logit_columns(), shape.tasks,
                                shaped_.as<ShapedRow>(), inputs.propose, step, outputs.proposals + at,
                                outputs.q_ids + at * kMaxTopN, outputs.q_weights + at * kMaxTopN,
                                next_tokens_.as<int32_t>(), head_tokens_.as<int32_t>(), stream_),
                  "proposing tokens");
}

absl::Status CudaModel::EnqueueOutputs(const StepShape& shape) {
  StepOutputs outputs;
  const size_t bytes = LayOut(shape, outputs_.device(), outputs);
  return bytes == 0 ? absl::OkStatus() : outputs_.ToHost(bytes, stream_);
}

}  // namespace outrider::cuda
