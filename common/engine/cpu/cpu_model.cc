#include "common/engine/cpu/cpu_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "common/engine/cpu/packing.h"
#include "common/engine/decoder/elements.h"

namespace outrider {
namespace {

// Below this many rows, the element-wise work of a layer takes less time than handing it to other threads.
constexpr int kMinParallelRows = 16;
// Panels per task of a matrix product: enough to amortise taking a task, few enough to balance the load.
constexpr int kPanelsPerTask = 4;
// Matrix products below this cost stay on the calling thread. The unit is the cost of one weight with one
// row; each further row adds a quarter. Handing work to another core costs a microsecond or two.
constexpr int64_t kMinParallelCost = 160 << 10;

int RoundUp(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace

KvGeometry LayOutKv(const DecoderSpec& spec, Storage storage, int block_size) {
  const size_t element_bytes = storage == Storage::kFloat32 ? 4 : 2;
  KvGeometry kv;
  kv.layer.storage = storage == Storage::kInt8 ? Storage::kBFloat16 : storage;
  kv.layer.block_size = block_size;
  kv.layer.slot_stride = RoundUp(block_size, kKvPad);
  kv.layer.head_dim = spec.head_dim;
  kv.layer.value_stride = RoundUp(spec.head_dim, kKvPad);
  const size_t heads = static_cast<size_t>(spec.kv_heads);
  const size_t keys = heads * static_cast<size_t>(spec.head_dim) * static_cast<size_t>(kv.layer.slot_stride);
  const size_t values = heads * static_cast<size_t>(block_size) * static_cast<size_t>(kv.layer.value_stride);
  kv.layer.value_offset = static_cast<int64_t>(keys * element_bytes);
  kv.layer_bytes = (keys + values) * element_bytes;
  kv.block_bytes = kv.layer_bytes * static_cast<size_t>(spec.layers);
  kv.layer.block_bytes = static_cast<int64_t>(kv.block_bytes);
  return kv;
}

absl::StatusOr<std::unique_ptr<CpuModel>> CpuModel::Create(const DecoderSpec& spec, CpuWeights weights,
                                                           const CpuModelOptions& options,
                                                           const Kernels& kernels, ThreadPool& thread_pool) {
  std::unique_ptr<CpuModel> model(new CpuModel(spec, std::move(weights), options, kernels, thread_pool));
  if (absl::Status status = model->AllocateMemory(); !status.ok()) return status;
  return model;
}

CpuModel::CpuModel(const DecoderSpec& spec, CpuWeights weights, const CpuModelOptions& options,
                   const Kernels& kernels, ThreadPool& thread_pool)
    : spec_(spec),
      weights_(std::move(weights)),
      options_(options),
      kernels_(kernels),
      thread_pool_(thread_pool),
      max_positions_(static_cast<int>(std::min<int64_t>(
          spec.max_position_embeddings, static_cast<int64_t>(options.kv_blocks) * options.block_size))),
      rope_(spec, max_positions_),
      kv_geometry_(LayOutKv(spec, weights_.storage, options.block_size)),
      kv_(kv_geometry_.layer),
      qkv_columns_((spec.heads + 2 * spec.kv_heads) * spec.head_dim),
      operand_bytes_(weights_.storage != Storage::kFloat32 && kernels.rounds_operands ? 2 : 4),
      rows_(spec.heads, spec.kv_heads, options.block_size) {}

absl::Status CpuModel::AllocateMemory() {
  const size_t blocks = static_cast<size_t>(options_.kv_blocks);
  if (kv_geometry_.block_bytes > std::numeric_limits<int64_t>::max() / blocks) {
    return absl::ResourceExhaustedError("the KV pool (--kv-blocks, --block-size) is larger than any memory");
  }
  const size_t rows = static_cast<size_t>(options_.max_batch_rows);
  scores_stride_ = RoundUp(max_positions_, kKvPad) + 2 * kKvPad + kv_.value_stride + kv_.head_dim;
  const size_t scores =
      static_cast<size_t>(thread_pool_.threads()) * kMaxQueries * static_cast<size_t>(scores_stride_);
  struct Request {
    Buffer& buffer;
    size_t bytes;
    const char* what;
  };
  const Request requests[] = {
      {cache_, kv_geometry_.block_bytes * static_cast<size_t>(options_.kv_blocks),
       "the KV pool (--kv-blocks, --block-size)"},
      {hidden_, rows * static_cast<size_t>(spec_.hidden_size) * 4, "hidden states"},
      {normalized_, rows * static_cast<size_t>(spec_.hidden_size) * operand_bytes_,
       "normalized hidden states"},
      {qkv_, rows * static_cast<size_t>(qkv_columns_) * 4, "queries, keys and values"},
      {attention_out_, rows * static_cast<size_t>(spec_.heads * spec_.head_dim) * operand_bytes_,
       "attention"},
      {activations_, rows * static_cast<size_t>(spec_.intermediate_size) * operand_bytes_, "activations"},
      {logits_, std::min(rows, size_t{kMaxLogitRows}) * static_cast<size_t>(spec_.logit_columns()) * 4,
       "logits (--max-batch-tokens)"},
      {scores_, scores * 4, "attention scores"},
  };
  for (const Request& request : requests) {
    absl::StatusOr<Buffer> buffer = Buffer::Allocate(request.bytes, request.what);
    if (!buffer.ok()) return buffer.status();
    request.buffer = *std::move(buffer);
  }
  kv_.base = cache_.data();
  rows_.ReserveMemory(options_.max_batch_rows);
  return absl::OkStatus();
}

std::string CpuModel::dtype() const {
  switch (weights_.storage) {
    case Storage::kFloat32:
      return "float32";
    case Storage::kBFloat16:
      return "bfloat16";
    case Storage::kInt8:
      return "int8";
  }
  return "";
}

absl::StatusOr<LogitsView> CpuModel::Forward(absl::Span<const SequenceRows> batch) {
  rows_.List(batch);
  Embed();
  int rows = rows_.size();
  const int hidden = spec_.hidden_size;
  ObserveFloats(kEmbedded, 0, rows, hidden_, hidden, hidden);
  const int attention_columns = spec_.heads * spec_.head_dim;
  const Product head = {weights_.head, Epilogue::kStore};
  for (int i = 0; i < spec_.layers; ++i) {
    const CpuLayer& layer = weights_.layers[static_cast<size_t>(i)];
    const bool last = i == spec_.layers - 1;
    const Product qkv = {layer.qkv, Epilogue::kStore};
    const Product attention_out = {layer.attention_out, Epilogue::kAdd};
    const Product gate_up = {layer.gate_up, Epilogue::kSiluMul};
    const Product mlp_out = {layer.mlp_out, Epilogue::kAdd};
    const Product after =
        last ? head : Product{weights_.layers[static_cast<size_t>(i) + 1].qkv, qkv.epilogue};
    Normalize(layer.attention_norm, rows);
    Multiply(qkv, attention_out, rows, normalized_, hidden, qkv_, qkv_columns_);
    Attend(i);
    ObserveOperands(kAttended, i, rows, attention_out_, attention_columns);
    if (last) {
      DropRowsWithoutLogits();
      rows = static_cast<int>(rows_.logit_rows().size());
    }
    Multiply(attention_out, gate_up, rows, attention_out_, attention_columns, hidden_, hidden);
    ObserveFloats(kAfterAttention, i, rows, hidden_, hidden, hidden);
    Normalize(layer.mlp_norm, rows);
    Multiply(gate_up, mlp_out, rows, normalized_, hidden, activations_, spec_.intermediate_size);
    ObserveOperands(kActivated, i, rows, activations_, spec_.intermediate_size);
    Multiply(mlp_out, after, rows, activations_, spec_.intermediate_size, hidden_, hidden);
    ObserveFloats(kAfterMlp, i, rows, hidden_, hidden, hidden);
  }
  Normalize(weights_.final_norm, rows);
  const Product first_of_next_step = {weights_.layers[0].qkv, Epilogue::kStore};
  Multiply(head, first_of_next_step, rows, normalized_, hidden, logits_, spec_.logit_columns());
  return LogitsView{logits_.floats(), rows, spec_.logit_columns()};
}

void CpuModel::Embed() {
  const TensorView& embedding = weights_.embedding;
  const int hidden = spec_.hidden_size;
  ForRows(rows_.size(), [&](int row) {
    float* to = hidden_.floats() + static_cast<int64_t>(row) * hidden;
    const int64_t from = static_cast<int64_t>(rows_[row].token) * hidden;
    ReadElements(embedding, from, hidden, to);
  });
}

void CpuModel::Attend(int layer) {
  const KvLayer kv = LayerOfCache(layer);
  const int half = spec_.head_dim / 2;
  const float scale = 1.0f / std::sqrt(static_cast<float>(spec_.head_dim));
  ForRows(rows_.size(), [&](int r) {
    const StepRow& row = rows_[r];
    RotateArgs args;
    args.kv = kv;
    args.block = row.block;
    args.slot = row.slot;
    args.heads = spec_.heads;
    args.kv_heads = spec_.kv_heads;
    args.q = qkv_.floats() + static_cast<int64_t>(r) * qkv_columns_;
    FinishHeads(weights_.layers[static_cast<size_t>(layer)], args.q);
    args.q_scale = scale;
    args.cosines = rope_.cosines.data() + static_cast<int64_t>(row.position) * half;
    args.sines = rope_.sines.data() + static_cast<int64_t>(row.position) * half;
    kernels_.rotate_and_store(args);
  });
  ObserveFloats(kQueries, layer, rows_.size(), qkv_, qkv_columns_, spec_.heads * spec_.head_dim, 1 / scale);
  const int group = spec_.heads / spec_.kv_heads;
  const int out_columns = spec_.heads * spec_.head_dim;
  const std::vector<AttentionTask>& tasks = rows_.attention_tasks();
  thread_pool_.Run(static_cast<int>(tasks.size()), [&](int t, int worker) {
    const AttentionTask& task = tasks[static_cast<size_t>(t)];
    const int column = task.first_head * spec_.head_dim;
    AttentionArgs args;
    args.kv = kv;
    args.blocks = task.blocks;
    args.kv_head = task.first_head / group;
    args.heads = task.heads;
    args.rows = task.rows;
    args.first_position = task.first_position;
    args.paths = task.first_path < 0 ? nullptr : rows_.paths(task.first_path);
    args.path_slots = rows_.path_slots();
    args.window = spec_.Slides(layer) ? spec_.sliding_window : 0;
    args.q = qkv_.floats() + static_cast<int64_t>(task.first_row) * qkv_columns_ + column;
    args.q_stride = qkv_columns_;
    args.out =
        attention_out_.data() +
        static_cast<size_t>(static_cast<int64_t>(task.first_row) * out_columns + column) * operand_bytes_;
    args.out_stride = out_columns;
    args.scratch = scores_.floats() + int64_t{worker} * kMaxQueries * scores_stride_;
    args.scratch_stride = scores_stride_;
    kernels_.attention(args);
  });
}

void CpuModel::FinishHeads(const CpuLayer& layer, float* qkv) const {
  if (layer.qkv_bias != nullptr) {
    for (int i = 0; i < qkv_columns_; ++i) qkv[i] += layer.qkv_bias[i];
  }
  if (layer.query_norm == nullptr) return;
  for (int head = 0; head < spec_.heads + spec_.kv_heads; ++head) {
    float* const x = qkv + head * spec_.head_dim;
    kernels_.rms_norm(x, head < spec_.heads ? layer.query_norm : layer.key_norm,
                      static_cast<float>(spec_.rms_norm_eps), spec_.head_dim, Storage::kFloat32, x);
  }
}

void CpuModel::DropRowsWithoutLogits() {
  for (int to = 0; to < static_cast<int>(rows_.logit_rows().size()); ++to) {
    const int from = rows_.logit_rows()[static_cast<size_t>(to)];  // never below `to`
    if (from == to) continue;
    const auto move = [&](char* data, size_t row_bytes) {
      std::memcpy(data + static_cast<size_t>(to) * row_bytes, data + static_cast<size_t>(from) * row_bytes,
                  row_bytes);
    };
    move(hidden_.data(), static_cast<size_t>(spec_.hidden_size) * sizeof(float));
    move(attention_out_.data(), static_cast<size_t>(spec_.heads * spec_.head_dim) * operand_bytes_);
  }
}

void CpuModel::Normalize(const float* weight, int rows) {
  const int hidden = spec_.hidden_size;
  const float epsilon = static_cast<float>(spec_.rms_norm_eps);
  ForRows(rows, [&](int row) {
    const int64_t offset = static_cast<int64_t>(row) * hidden;
    kernels_.rms_norm(hidden_.floats() + offset, weight, epsilon, hidden, weights_.storage,
                      normalized_.data() + static_cast<size_t>(offset) * operand_bytes_);
  });
}

void CpuModel::Multiply(const Product& product, const Product& next, int rows, const Buffer& x, int x_stride,
                        const Buffer& y, int y_stride) {
  if (rows == 0) return;
  const Partition partition = Divide(product, rows), next_partition = Divide(next, rows);
  thread_pool_.Run(partition.tasks, [&](int task, int worker) {
    const bool ends_range =
        task + 1 == partition.tasks || task + 1 == thread_pool_.FirstTask(worker + 1, partition.tasks);
    const PackedMatrix& next_matrix = ends_range ? next.matrix : product.matrix;
    const int next_panel =
        ends_range ? next_partition.FirstPanel(thread_pool_.FirstTask(worker, next_partition.tasks))
                   : partition.FirstPanel(task + 1);
    LinearArgs args;
    args.weights = product.matrix.data;
    args.storage = weights_.storage;
    args.epilogue = product.epilogue;
    args.k = product.matrix.k;
    args.n = product.matrix.n;
    args.rows = rows;
    args.x = x.data();
    args.x_stride = x_stride;
    args.y = y.data();
    args.y_stride = y_stride;
    args.y_columns = y_stride;
    args.first_panel = partition.FirstPanel(task);
    args.last_panel = partition.FirstPanel(task + 1);
    args.next = next_matrix.data +
                static_cast<size_t>(next_panel) * PackedBytes(kPanel, next_matrix.k, weights_.storage);
    kernels_.linear(args);
  });
}

CpuModel::Partition CpuModel::Divide(const Product& product, int rows) const {
  const PackedMatrix& matrix = product.matrix;
  Partition partition;
  partition.panels_per_unit = product.epilogue == Epilogue::kSiluMul ? 2 : 1;
  const int unit = partition.panels_per_unit * kPanel;
  partition.units = (matrix.n + unit - 1) / unit;
  const int per_thread = (partition.units + thread_pool_.threads() - 1) / thread_pool_.threads();
  const int units_per_task = kPanelsPerTask / partition.panels_per_unit;
  const int tasks_per_thread = std::max(1, (per_thread + units_per_task / 2) / units_per_task);
  const int64_t cost = static_cast<int64_t>(matrix.n) * matrix.k * (3 + rows) / 4;
  partition.tasks =
      cost < kMinParallelCost ? 1 : std::min(partition.units, tasks_per_thread * thread_pool_.threads());
  return partition;
}

void CpuModel::ForRows(int rows, absl::FunctionRef<void(int row)> fn) {
  if (rows < kMinParallelRows) {
    for (int row = 0; row < rows; ++row) fn(row);
  } else {
    thread_pool_.Run(rows, [&](int row, int) { fn(row); });
  }
}

KvLayer CpuModel::LayerOfCache(int layer) const {
  KvLayer kv = kv_;
  kv.base += static_cast<size_t>(layer) * kv_geometry_.layer_bytes;
  return kv;
}

void CpuModel::ObserveFloats(absl::string_view stage, int layer, int rows, const Buffer& from, int stride,
                             int columns, float scale) const {
  if (!options_.observe) return;
  std::vector<float> values;
  for (int row = 0; row < rows; ++row) {
    const float* const first = from.floats() + static_cast<int64_t>(row) * stride;
    for (int i = 0; i < columns; ++i) values.push_back(scale * first[i]);
  }
  options_.observe({stage, layer, columns, values});
}

void CpuModel::ObserveOperands(absl::string_view stage, int layer, int rows, const Buffer& from,
                               int columns) const {
  if (!options_.observe) return;
  if (operand_bytes_ == sizeof(float)) return ObserveFloats(stage, layer, rows, from, columns, columns);
  const TensorView operands{ElementType::kBFloat16, {rows, columns}, from.data()};
  std::vector<float> values(static_cast<size_t>(rows) * static_cast<size_t>(columns));
  for (int row = 0; row < rows; ++row) {
    const int64_t first = static_cast<int64_t>(row) * columns;
    ReadElements(operands, first, columns, values.data() + first);
  }
  options_.observe({stage, layer, columns, values});
}

void CpuModel::CopyBlock(BlockId from, BlockId to) {
  if (from == to) return;
  std::memcpy(cache_.data() + static_cast<size_t>(to) * kv_geometry_.block_bytes,
              cache_.data() + static_cast<size_t>(from) * kv_geometry_.block_bytes, kv_geometry_.block_bytes);
}

// A slot's key is a column of 32-bit words, one or two dimensions each, and its value a row.
void CpuModel::MoveSlots(absl::Span<const BlockId> blocks, absl::Span<const SlotMove> moves) {
  const bool wide = kv_.storage == Storage::kFloat32;
  const size_t column = static_cast<size_t>(kv_.slot_stride) * 4;
  const size_t words = static_cast<size_t>(spec_.kv_heads * spec_.head_dim) / (wide ? 1 : 2);
  const size_t value_bytes = static_cast<size_t>(kv_.value_stride) * (wide ? 4 : 2);
  for (const SlotMove& move : moves) {
    for (int layer = 0; layer < spec_.layers; ++layer) {
      const KvLayer kv = LayerOfCache(layer);
      const auto block_of = [&](int slot) {
        return kv.base + blocks[static_cast<size_t>(slot / kv.block_size)] * kv.block_bytes;
      };
      const size_t from = static_cast<size_t>(move.from % kv.block_size);
      const size_t to = static_cast<size_t>(move.to % kv.block_size);
      for (size_t word = 0; word < words; ++word) {
        std::memcpy(block_of(move.to) + word * column + to * 4,
                    block_of(move.from) + word * column + from * 4, 4);
      }
      for (size_t head = 0; head < static_cast<size_t>(spec_.kv_heads); ++head) {
        const size_t first = head * static_cast<size_t>(kv.block_size);
        std::memcpy(block_of(move.to) + kv.value_offset + (first + to) * value_bytes,
                    block_of(move.from) + kv.value_offset + (first + from) * value_bytes, value_bytes);
      }
    }
  }
}

absl::Status CpuModel::ReadSlot(BlockId block, int slot, absl::Span<float> values) {
  const size_t per_layer = 2 * static_cast<size_t>(spec_.kv_heads) * static_cast<size_t>(spec_.head_dim);
  for (int layer = 0; layer < spec_.layers; ++layer) {
    float* const out = values.data() + static_cast<size_t>(layer) * per_layer;
    kernels_.read_slot({LayerOfCache(layer), block, slot, spec_.kv_heads, out});
  }
  return absl::OkStatus();
}

}  // namespace outrider
