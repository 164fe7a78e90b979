#include "common/engine/cuda/cuda_model.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/engine/backend.h"
#include "common/engine/cuda/decide_kernels.h"
#include "common/gguf/model_path.h"
#include "common/spec/status.h"

namespace outrider::cuda {
namespace {

// Enough attention plans for the passes of a step: the first pass, and one per further drafted token.
constexpr int kPlans = kMaxDraftTokens + 1;

// The most device memory that a graph can plausibly take. A larger measurement includes what other processes
// allocated on this GPU in the meantime.
constexpr size_t kMaxGraphBytes = size_t{16} << 20;

absl::Status CheckShape(const DecoderConfig& spec, const std::string& model_dir) {
  const struct {
    const char* field;
    int value;
    bool fits;
    std::string rule;
  } rules[] = {
      {"head_dim", spec.head_dim, spec.head_dim == 64 || spec.head_dim == 128, "64 or 128"},
      {"vocab_size", spec.vocab_size, spec.vocab_size % 16 == 0, "a multiple of 16"},
      {"hidden_size", spec.hidden_size, spec.hidden_size % 16 == 0, "a multiple of 16"},
      {"intermediate_size", spec.intermediate_size, spec.intermediate_size % 16 == 0, "a multiple of 16"},
      {"vocab_size", spec.vocab_size, spec.vocab_size <= kMaxVocab, absl::StrCat("at most ", kMaxVocab)},
      {"hidden_size", spec.hidden_size, spec.hidden_size <= kMaxNormed, absl::StrCat("at most ", kMaxNormed)},
  };
  for (const auto& [field, value, fits, rule] : rules) {
    if (fits) continue;
    return Invalid(FileOf(model_dir, "config.json"), ": ", field, ": ", value, ": must be ", rule,
                   " with --device cuda");
  }
  if (spec.logit_columns() % 16 == 0) return absl::OkStatus();
  return Invalid("--frequent-tokens ", spec.logit_columns(), ": must be a multiple of 16 with --device cuda");
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
  OUTRIDER_TRY(model->Load(weights));
  return model;
}

absl::Status CudaModel::Load(const TensorSource& source) {
  OUTRIDER_TRY(CheckShape(spec_, options_.model_dir));
  // The current device is per thread, and Forward runs on another thread than Load.
  OUTRIDER_TRY(ToStatus(cudaSetDevice(device_), "choosing the device"));
  int lowest = 0, highest = 0;
  OUTRIDER_TRY(ToStatus(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "starting"));
  const int priority = options_.role == ModelRole::kDraft ? highest : lowest;
  OUTRIDER_TRY(ToStatus(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority), "starting"));

  matmul_ = OUTRIDER_TRY(Matmul::Create(operand_, options_.matmul_algorithms, stream_));
  Weights weights = OUTRIDER_TRY(LoadWeights(source, spec_, operand_, *matmul_, stream_, options_.progress));
  OUTRIDER_TRY(matmul_->Store());

  max_rows_ = RowCapacity(options_.max_batch_rows);
  // Allocate everything else before the KV pool, so that the pool takes its share of what is left. The pool
  // limits the length of sequences if its size is given.
  const int64_t most_positions = options_.kv_blocks > 0 ? int64_t{options_.kv_blocks} * options_.block_size
                                                        : std::numeric_limits<int64_t>::max();
  max_positions_ = static_cast<int>(std::min<int64_t>(spec_.max_position_embeddings, most_positions));
  OUTRIDER_TRY(AllocateStepMemory());
  const AttentionShape shape = AttentionShapeOf(spec_, options_.block_size);
  attention_ = OUTRIDER_TRY(Attention::Create(shape, AttentionCapacity(shape, max_rows_, max_positions_),
                                              std::max(kPlans, max_rows_ / kLongRows + 1)));
  layers_ = OUTRIDER_TRY(DecoderLayers::Create(spec_, std::move(weights), operand_, *matmul_, *attention_,
                                               {.block_size = options_.block_size,
                                                .max_rows = max_rows_ + kMaxIdleRows,
                                                .max_positions = max_positions_,
                                                .observe = options_.observe},
                                               stream_));
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
  OUTRIDER_TRY(resize(0));
  OUTRIDER_TRY(Run(DirectSteps(limits), StepGraphs::Capture::kNever));
  size_t free_bytes = 0;
  if (options_.kv_blocks == 0) {
    // Leave memory for kMaxGraphs graphs that are as large as that of the last common step.
    constexpr char kAsking[] = "asking for free memory";
    size_t after = 0, all_bytes = 0;
    OUTRIDER_TRY(ToStatus(cudaMemGetInfo(&free_bytes, &all_bytes), kAsking));
    if (!common.empty()) OUTRIDER_TRY(Run({common.back()}, StepGraphs::Capture::kAtOnce));
    OUTRIDER_TRY(ToStatus(cudaMemGetInfo(&after, &all_bytes), kAsking));
    graphs_.Drop();  // they use the KV pool that is about to be replaced
    const size_t graph = std::min(free_bytes - std::min(free_bytes, after), kMaxGraphBytes);
    free_bytes -= std::min(free_bytes, kMaxGraphs * graph);
  }
  const int wanted = KvBlocks(spec_, options_, free_bytes, layers_->bytes_per_block());
  OUTRIDER_TRY(resize(std::min(wanted, MostBlocks(attention_->shape()))));
  max_positions_ =
      static_cast<int>(std::min<int64_t>(max_positions_, int64_t{kv_blocks_} * options_.block_size));
  return Run(common, StepGraphs::Capture::kAtOnce);
}

absl::Status CudaModel::Run(const std::vector<WarmUpStep>& steps, StepGraphs::Capture capture) {
  if (options_.observe) return absl::OkStatus();  // no observer wants these steps
  const StepGraphs::Capture usual = std::exchange(capture_, capture);
  for (const WarmUpStep& step : steps) {
    MadeUpBatch batch(step, options_.block_size);
    OUTRIDER_TRY(Forward(batch.rows(), {}));
  }
  capture_ = usual;
  return absl::OkStatus();
}

absl::Status CudaModel::AllocateStepMemory() {
  // The largest steps: every row has a draft to verify, or proposes in every further pass.
  const int host_rows = std::min(max_rows_, kMaxLogitRows), logit_rows = host_rows + kMaxIdleRows;
  const StepShape verifies{.rows = max_rows_, .logit_rows = logit_rows, .tasks = max_rows_};
  StepShape proposes = verifies;
  proposes.proposes = true;
  proposes.draft_passes = kMaxDraftTokens - 1;
  StepInputs inputs;
  StepOutputs outputs;
  const size_t in = std::max(LayOut(verifies, nullptr, inputs), LayOut(proposes, nullptr, inputs));
  const size_t out = std::max(LayOut(verifies, nullptr, outputs), LayOut(proposes, nullptr, outputs));
  const size_t rows = static_cast<size_t>(max_rows_), wanted = static_cast<size_t>(logit_rows);
  const size_t row_bytes = static_cast<size_t>(spec_.logit_columns()) * sizeof(float);
  constexpr char kInput[] = "steps' input", kOutput[] = "steps' output",
                 kLogits[] = "logits (--max-batch-tokens)";
  host_inputs_ = OUTRIDER_TRY(PinnedMemory::Allocate(in, kInput));
  inputs_ = OUTRIDER_TRY(DeviceMemory::Allocate(in, kInput));
  host_outputs_ = OUTRIDER_TRY(PinnedMemory::Allocate(out, kOutput));
  outputs_ = OUTRIDER_TRY(DeviceMemory::Allocate(out, kOutput));
  host_logits_ = OUTRIDER_TRY(PinnedMemory::Allocate(static_cast<size_t>(host_rows) * row_bytes, kLogits));
  logits_ = OUTRIDER_TRY(DeviceMemory::Allocate(wanted * row_bytes, kLogits));
  shaped_ = OUTRIDER_TRY(DeviceMemory::Allocate(wanted * sizeof(ShapedRow), "shaped rows"));
  next_tokens_ = OUTRIDER_TRY(DeviceMemory::Allocate(rows * sizeof(int32_t), "drafted tokens"));
  races_ = OUTRIDER_TRY(DeviceMemory::Allocate(wanted * sizeof(int32_t), "races"));
  if (const size_t bytes = spec_.head_tokens.size() * sizeof(TokenId); bytes > 0) {
    head_tokens_ = OUTRIDER_TRY(DeviceMemory::Allocate(bytes, "tokens of the head"));
    OUTRIDER_TRY(ToStatus(cudaMemcpyAsync(head_tokens_.data(), spec_.head_tokens.data(), bytes,
                                          cudaMemcpyHostToDevice, stream_),
                          "uploading the tokens of the head"));
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
  OUTRIDER_TRY(ToStatus(cudaSetDevice(device_), "choosing the device"));
  return layers_->ReadSlot(block, slot, values);
}

absl::StatusOr<LogitsView> CudaModel::Forward(absl::Span<const SequenceRows> batch,
                                              const PassOptions& /*pass*/) {
  OUTRIDER_TRY(ToStatus(cudaSetDevice(device_), "choosing the device"));
  const StepPlan plan = PlanStep(batch, options_.block_size, spare_);
  const StepShape shape = ShapeOf(plan);
  StepInputs inputs;
  LayOut(shape, host_inputs_.data(), inputs);
  WriteInputs(plan, shape, layers_->spare_block(), inputs);
  const std::optional<GraphShape> captured =
      GraphOf(plan, shape, attention_->shape(), attention_->capacity());
  cudaGraphExec_t graph = nullptr;
  if (captured) {
    graph = graphs_.Find(*captured, capture_, stream_, [&] { return EnqueueCaptured(*captured); });
  }
  OUTRIDER_TRY(graph != nullptr ? Replay(plan, *captured, graph) : RunEager(plan, shape));

  const size_t row_bytes = static_cast<size_t>(spec_.logit_columns()) * sizeof(float);
  const size_t host_rows = static_cast<size_t>(plan.host_rows);
  if (host_rows > 0) {
    const size_t before = (plan.logit_rows.size() - host_rows) * row_bytes;
    OUTRIDER_TRY(ToStatus(cudaMemcpyAsync(host_logits_.data(), logits_.data() + before, host_rows * row_bytes,
                                          cudaMemcpyDeviceToHost, stream_),
                          "copying logits"));
  }
  OUTRIDER_TRY(ToStatus(cudaStreamSynchronize(stream_), "waiting for a step"));
  StepOutputs outputs;
  LayOut(shape, host_outputs_.data(), outputs);
  ReadOutputs(plan, shape, outputs);
  return LogitsView{host_logits_.as<float>(), plan.host_rows, spec_.logit_columns()};
}

absl::Status CudaModel::Replay(const StepPlan& plan, const GraphShape& shape, cudaGraphExec_t graph) {
  attention_->Clear();
  OUTRIDER_TRY(attention_->Add(shape.first, plan.first.sequences));
  for (const PassPlan& pass : plan.draft_passes) OUTRIDER_TRY(attention_->Add(shape.draft, pass.sequences));
  OUTRIDER_TRY(attention_->Upload(stream_));
  return ToStatus(cudaGraphLaunch(graph, stream_), "launching a step");
}

absl::Status CudaModel::EnqueueCaptured(const GraphShape& shape) {
  size_t plan = 0;
  for (int pass = 0; pass <= shape.step.draft_passes; ++pass) {
    const AttentionSize& size = pass == 0 ? shape.first : shape.draft;
    OUTRIDER_TRY(EnqueuePass(shape.step, pass, {{.plan = plan, .size = size, .first_row = 0}}));
    plan += Attention::PlanBytes(size);
  }
  return absl::OkStatus();
}

absl::Status CudaModel::RunEager(const StepPlan& plan, const StepShape& shape) {
  attention_->Clear();
  for (int pass = 0; pass <= shape.draft_passes; ++pass) {
    std::vector<PlannedAttention> parts = OUTRIDER_TRY(
        UploadAttention(pass == 0 ? plan.first : plan.draft_passes[static_cast<size_t>(pass - 1)]));
    OUTRIDER_TRY(EnqueuePass(shape, pass, std::move(parts)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<PlannedAttention>> CudaModel::UploadAttention(const PassPlan& pass) {
  const std::vector<AttentionPass> cut =
      OUTRIDER_TRY(CutIntoPasses(attention_->shape(), pass.sequences, attention_->capacity()));
  std::vector<PlannedAttention> parts;
  size_t bytes = 0;
  for (const AttentionPass& part : cut) {
    const AttentionSize size = SizeOf(attention_->shape(), part.sequences);
    parts.push_back({.plan = 0, .size = size, .first_row = part.first_row});
    bytes += Attention::PlanBytes(size);
  }
  if (!attention_->HasRoom(bytes)) {
    // Earlier passes may still read their plans.
    OUTRIDER_TRY(ToStatus(cudaStreamSynchronize(stream_), "waiting for a pass"));
    attention_->Clear();
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i].plan = OUTRIDER_TRY(attention_->Add(parts[i].size, cut[i].sequences));
  }
  OUTRIDER_TRY(attention_->Upload(stream_));
  return parts;
}

absl::Status CudaModel::EnqueuePass(const StepShape& shape, int pass,
                                    std::vector<PlannedAttention> attention) {
  StepInputs in;
  StepOutputs out;
  const size_t in_bytes = LayOut(shape, inputs_.data(), in), out_bytes = LayOut(shape, outputs_.data(), out);
  const bool first = pass == 0;
  if (first) {
    OUTRIDER_TRY(ToStatus(
        cudaMemcpyAsync(inputs_.data(), host_inputs_.data(), in_bytes, cudaMemcpyHostToDevice, stream_),
        "copying a step's input"));
  }
  float* const logits = logits_.as<float>();
  const int logit_rows = first ? shape.logit_rows : shape.tasks;
  OUTRIDER_TRY(layers_->Enqueue({.rows = first ? shape.rows : shape.tasks,
                                 .tokens = first ? in.tokens : next_tokens_.as<int32_t>(),
                                 .places = first ? in.places : in.draft_places + (pass - 1) * shape.tasks,
                                 .attention = std::move(attention),
                                 .logit_count = logit_rows,
                                 .logit_rows = first ? in.logit_rows : nullptr,
                                 .logits = logits}));
  if (shape.tasks == 0) return absl::OkStatus();
  const int columns = spec_.logit_columns();
  ShapedRow* const shaped = shaped_.as<ShapedRow>();
  OUTRIDER_TRY(
      ToStatus(LaunchShape(logits, columns, logit_rows, in.shape_params, shaped, stream_), "shaping rows"));
  if (shape.proposes) {
    const int at = pass * shape.tasks;
    OUTRIDER_TRY(
        ToStatus(LaunchPropose(logits, columns, shape.tasks, shaped, in.propose, pass, out.proposals + at,
                               out.q_ids + at * kMaxTopN, out.q_weights + at * kMaxTopN,
                               next_tokens_.as<int32_t>(), head_tokens_.as<int32_t>(), stream_),
                 "proposing tokens"));
  } else {
    OUTRIDER_TRY(
        ToStatus(LaunchVerify(logits, columns, shape.tasks, std::min(kMaxDraftTokens, shape.logit_rows - 1),
                              shaped, in.verify, in.drafted, in.q_ids, in.q_weights, races_.as<int32_t>(),
                              out.verdicts, stream_),
                 "judging drafts"));
  }
  if (pass < shape.draft_passes) return absl::OkStatus();
  return ToStatus(
      cudaMemcpyAsync(host_outputs_.data(), outputs_.data(), out_bytes, cudaMemcpyDeviceToHost, stream_),
      "copying a step's output");
}

}  // namespace outrider::cuda
