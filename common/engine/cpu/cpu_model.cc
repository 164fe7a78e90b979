#include "common/engine/cpu/cpu_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "common/engine/decoder/tensor_source.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

// Moves the rows with these indices, which ascend, to the front of `data`.
void KeepRows(const std::vector<int>& rows, size_t row_bytes, char* data) {
  for (size_t to = 0; to < rows.size(); ++to) {
    const size_t from = static_cast<size_t>(rows[to]);  // never below `to`
    if (from != to) std::memcpy(data + to * row_bytes, data + from * row_bytes, row_bytes);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<CpuModel>> CpuModel::Create(const DecoderConfig& spec, CpuWeights weights,
                                                           const RunnerOptions& options,
                                                           const Kernels& kernels, ThreadPool& thread_pool) {
  std::unique_ptr<CpuModel> model(new CpuModel(spec, std::move(weights), options, kernels, thread_pool));
  OUTRIDER_TRY(model->AllocateMemory());
  return model;
}

CpuModel::CpuModel(const DecoderConfig& spec, CpuWeights weights, const RunnerOptions& options,
                   const Kernels& kernels, ThreadPool& thread_pool)
    : spec_(spec),
      weights_(std::move(weights)),
      options_(options),
      kernels_(kernels),
      thread_pool_(thread_pool),
      max_positions_(static_cast<int>(std::min<int64_t>(
          spec.max_position_embeddings, static_cast<int64_t>(options.kv_blocks) * options.block_size))),
      rope_(spec, max_positions_),
      kv_(LayOutKv(spec, weights_.storage, options.block_size)),
      qkv_columns_((spec.heads + 2 * spec.kv_heads) * spec.head_dim),
      multiplier_(kernels, thread_pool, weights_.storage),
      rows_(spec.heads, spec.kv_heads, options.block_size) {}

absl::Status CpuModel::AllocateMemory() {
  const size_t blocks = static_cast<size_t>(options_.kv_blocks);
  if (bytes_per_block() > std::numeric_limits<int64_t>::max() / blocks) {
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
      {cache_, bytes_per_block() * blocks, "the KV pool (--kv-blocks, --block-size)"},
      {hidden_, rows * static_cast<size_t>(spec_.hidden_size) * 4, "hidden states"},
      {normalized_,
       rows * static_cast<size_t>(std::max(spec_.hidden_size, spec_.attention_input)) *
           multiplier_.operand_bytes(),
       "normalized hidden states"},
      {qkv_, rows * static_cast<size_t>(qkv_columns_) * 4, "queries, keys and values"},
      {attention_out_, rows * static_cast<size_t>(spec_.heads * spec_.head_dim) * multiplier_.operand_bytes(),
       "attention"},
      {activations_, rows * static_cast<size_t>(spec_.intermediate_size) * multiplier_.operand_bytes(),
       "activations"},
      {logits_, std::min(rows, size_t{kMaxLogitRows}) * static_cast<size_t>(spec_.logit_columns()) * 4,
       "logits (--max-batch-tokens)"},
      {scores_, scores * 4, "attention scores"},
  };
  for (const Request& request : requests) {
    request.buffer = OUTRIDER_TRY(Buffer::Allocate(request.bytes, request.what));
  }
  kv_.base = cache_.data();
  rows_.ReserveMemory(options_.max_batch_rows);
  return absl::OkStatus();
}

absl::StatusOr<LogitsView> CpuModel::Forward(absl::Span<const SequenceRows> batch, const PassOptions& pass) {
  rows_.List(batch);
  // A model that continues another model's hidden states has no embedding.
  spec_.outer_norms ? EmbedTokens(batch) : TakeEmbeddings(batch);
  ObserveFloats(kEmbedded, 0, rows_.size(), hidden_, spec_.hidden_size, spec_.hidden_size);
  const int layers = pass.layers > 0 ? pass.layers : spec_.layers;
  hidden_columns_ = spec_.hidden_size * (1 + static_cast<int>(pass.taps.size()));
  hidden_states_.resize(rows_.hidden_rows().size() * static_cast<size_t>(hidden_columns_));
  for (int i = 0; i < layers; ++i) {
    const bool last = i == layers - 1;
    ComputeLayer(i, last);
    CopyTaps(pass.taps, i + 1, last);
  }
  LogitsView logits = Finish();
  logits.hidden = {hidden_states_.data(), static_cast<int>(rows_.hidden_rows().size()), hidden_columns_};
  return logits;
}

void CpuModel::EmbedTokens(absl::Span<const SequenceRows> batch) {
  const int hidden = spec_.hidden_size;
  multiplier_.ForRows(rows_.size(), [&](int row) {
    ReadEmbedding(rows_[row].token, hidden_.floats() + int64_t{row} * hidden);
  });
  size_t end = 0;
  for (const SequenceRows& sequence : batch) {
    end += sequence.tokens.size();
    const size_t count = sequence.embeddings.size();
    std::copy_n(sequence.embeddings.data(), count,
                hidden_.floats() + end * static_cast<size_t>(hidden) - count);
  }
}

void CpuModel::ReadEmbedding(TokenId token, float* to) const {
  if (weights_.embedding_blocks.data != nullptr) return ReadRow(weights_.embedding_blocks, token, to);
  ReadElements(weights_.embedding, int64_t{token} * spec_.hidden_size, spec_.hidden_size, to);
}

void CpuModel::TakeEmbeddings(absl::Span<const SequenceRows> batch) {
  const size_t hidden = static_cast<size_t>(spec_.hidden_size);
  const size_t attended = static_cast<size_t>(spec_.attention_input);
  size_t row = 0;
  for (const SequenceRows& sequence : batch) {
    const float* from = sequence.embeddings.data();
    for (size_t i = 0; i < sequence.tokens.size(); ++i, ++row) {
      std::copy_n(from, hidden, hidden_.floats() + row * hidden);
      multiplier_.ToOperands(from + hidden, spec_.attention_input,
                             normalized_.data() + row * attended * multiplier_.operand_bytes());
      from += hidden + attended;
    }
  }
}

absl::Status CpuModel::ReadEmbeddings(absl::Span<const TokenId> tokens, absl::Span<float> to) {
  const int hidden = spec_.hidden_size;
  for (size_t i = 0; i < tokens.size(); ++i) {
    ReadEmbedding(tokens[i], to.data() + i * static_cast<size_t>(hidden));
  }
  return absl::OkStatus();
}

void CpuModel::ComputeLayer(int i, bool last) {
  const CpuLayer& layer = weights_.layers[static_cast<size_t>(i)];
  int rows = rows_.size();
  const int hidden = spec_.hidden_size, attention_columns = spec_.heads * spec_.head_dim;
  const Product qkv = {layer.qkv, Epilogue::kStore};
  const Product attention_out = {layer.attention_out, Epilogue::kAdd};
  const Product gate_up = {layer.gate_up, Epilogue::kSiluMul};
  const Product mlp_out = {layer.mlp_out, Epilogue::kAdd};
  const Product after = {last ? weights_.head : weights_.layers[static_cast<size_t>(i) + 1].qkv,
                         qkv.epilogue};
  if (i > 0 || spec_.attention_input == 0) Normalize(layer.attention_norm, rows);
  multiplier_.Multiply(qkv, attention_out, rows, normalized_.data(), qkv_.data(), qkv_columns_);
  Attend(i);
  ObserveOperands(kAttended, i, rows, attention_out_, attention_columns);
  if (last) {
    KeepRows(rows_.kept_rows(), static_cast<size_t>(hidden) * sizeof(float), hidden_.data());
    KeepRows(rows_.kept_rows(), static_cast<size_t>(attention_columns) * multiplier_.operand_bytes(),
             attention_out_.data());
    rows = static_cast<int>(rows_.kept_rows().size());
  }
  multiplier_.Multiply(attention_out, gate_up, rows, attention_out_.data(), hidden_.data(), hidden);
  ObserveFloats(kAfterAttention, i, rows, hidden_, hidden, hidden);
  Normalize(layer.mlp_norm, rows);
  multiplier_.Multiply(gate_up, mlp_out, rows, normalized_.data(), activations_.data(),
                       spec_.intermediate_size);
  ObserveOperands(kActivated, i, rows, activations_, spec_.intermediate_size);
  multiplier_.Multiply(mlp_out, after, rows, activations_.data(), hidden_.data(), hidden);
  ObserveFloats(kAfterMlp, i, rows, hidden_, hidden, hidden);
}

void CpuModel::CopyTaps(absl::Span<const int> taps, int layers, bool dropped) {
  const size_t hidden = static_cast<size_t>(spec_.hidden_size);
  for (size_t t = 0; t < taps.size(); ++t) {
    if (taps[t] != layers) continue;
    for (size_t h = 0; h < rows_.hidden_rows().size(); ++h) {
      const int kept = rows_.hidden_rows()[h];
      const int row = dropped ? kept : rows_.kept_rows()[static_cast<size_t>(kept)];
      std::memcpy(&hidden_states_[h * static_cast<size_t>(hidden_columns_) + (1 + t) * hidden],
                  hidden_.floats() + static_cast<size_t>(row) * hidden, hidden * sizeof(float));
    }
  }
}

LogitsView CpuModel::Finish() {
  const size_t hidden = static_cast<size_t>(spec_.hidden_size);
  for (size_t h = 0; h < rows_.hidden_rows().size(); ++h) {
    const float* const from = hidden_.floats() + static_cast<size_t>(rows_.hidden_rows()[h]) * hidden;
    float* const to = &hidden_states_[h * static_cast<size_t>(hidden_columns_)];
    if (weights_.final_norm == nullptr) {
      std::memcpy(to, from, hidden * sizeof(float));
    } else {
      kernels_.rms_norm(from, weights_.final_norm, static_cast<float>(spec_.rms_norm_eps), spec_.hidden_size,
                        Storage::kFloat32, to);
    }
  }
  Normalize(weights_.final_norm, static_cast<int>(rows_.kept_rows().size()));
  KeepRows(rows_.logit_rows(), hidden * multiplier_.operand_bytes(), normalized_.data());
  return MultiplyHead(static_cast<int>(rows_.logit_rows().size()));
}

LogitsView CpuModel::MultiplyHead(int rows) {
  const Product head = {weights_.head, Epilogue::kStore};
  const Product first_of_next_step = {weights_.layers[0].qkv, Epilogue::kStore};
  multiplier_.Multiply(head, first_of_next_step, rows, normalized_.data(), logits_.data(),
                       spec_.logit_columns());
  return {logits_.floats(), rows, spec_.logit_columns()};
}

void CpuModel::Attend(int layer) {
  const KvLayer kv = LayerOfCache(layer);
  const int half = spec_.head_dim / 2;
  const float scale = 1.0f / std::sqrt(static_cast<float>(spec_.head_dim));
  multiplier_.ForRows(rows_.size(), [&](int r) {
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
    args.first_attended = spec_.first_position;
    args.q = qkv_.floats() + static_cast<int64_t>(task.first_row) * qkv_columns_ + column;
    args.q_stride = qkv_columns_;
    args.out = attention_out_.data() +
               static_cast<size_t>(static_cast<int64_t>(task.first_row) * out_columns + column) *
                   multiplier_.operand_bytes();
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

void CpuModel::Normalize(const float* weight, int rows) {
  const int hidden = spec_.hidden_size;
  const float epsilon = static_cast<float>(spec_.rms_norm_eps);
  multiplier_.ForRows(rows, [&](int row) {
    const size_t offset = static_cast<size_t>(row) * static_cast<size_t>(hidden);
    const float* const from = hidden_.floats() + offset;
    char* const to = normalized_.data() + offset * multiplier_.operand_bytes();
    if (weight == nullptr) return multiplier_.ToOperands(from, hidden, to);
    kernels_.rms_norm(from, weight, epsilon, hidden, weights_.storage, to);
  });
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
  if (multiplier_.operand_bytes() == sizeof(float))
    return ObserveFloats(stage, layer, rows, from, columns, columns);
  const TensorView operands{ElementType::kBFloat16, {rows, columns}, from.data()};
  const std::vector<float> values = AllElements(operands);
  options_.observe({stage, layer, columns, values});
}

}  // namespace outrider
