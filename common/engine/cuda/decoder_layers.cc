#include "common/engine/cuda/decoder_layers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/spec/status.h"

namespace outrider::cuda {

absl::StatusOr<std::unique_ptr<DecoderLayers>> DecoderLayers::Create(const DecoderConfig& spec,
                                                                     Weights weights, Operand operand,
                                                                     Matmul& matmul, Attention& attention,
                                                                     const Options& options,
                                                                     cudaStream_t stream) {
  std::unique_ptr<DecoderLayers> layers(
      new DecoderLayers(spec, std::move(weights), operand, matmul, attention, options, stream));
  OUTRIDER_TRY(layers->AllocateMemory());
  return layers;
}

DecoderLayers::DecoderLayers(const DecoderConfig& spec, Weights weights, Operand operand, Matmul& matmul,
                             Attention& attention, const Options& options, cudaStream_t stream)
    : spec_(spec),
      weights_(std::move(weights)),
      operand_type_(operand),
      matmul_(matmul),
      attention_(attention),
      options_(options),
      stream_(stream),
      heads_{spec.heads, spec.kv_heads, spec.head_dim},
      block_bytes_(sizeof(__nv_bfloat16) * spec.kv_numbers() * static_cast<size_t>(options.block_size)) {}

absl::Status DecoderLayers::AllocateMemory() {
  const size_t rows = static_cast<size_t>(PaddedRows(options_.max_rows));
  const size_t hidden = static_cast<size_t>(spec_.hidden_size);
  const size_t queries = static_cast<size_t>(spec_.heads * spec_.head_dim);
  const size_t keys = static_cast<size_t>(spec_.kv_heads * spec_.head_dim);
  const size_t intermediate = static_cast<size_t>(spec_.intermediate_size);
  const size_t operand = std::max({hidden, queries, intermediate});
  const size_t product = std::max({hidden, queries + 2 * keys, 2 * intermediate});
  const size_t operand_bytes = rows * operand * OperandBytes(operand_type_);
  hidden_ = OUTRIDER_TRY(DeviceMemory::Allocate(rows * hidden * sizeof(float), "hidden states"));
  operands_ = OUTRIDER_TRY(DeviceMemory::Allocate(operand_bytes, "operands"));
  operand_scales_ = OUTRIDER_TRY(DeviceMemory::Allocate(2 * rows * sizeof(float), "scales of operands"));
  product_ = OUTRIDER_TRY(DeviceMemory::Allocate(rows * product * sizeof(float), "products"));
  queries_ = OUTRIDER_TRY(DeviceMemory::Allocate(rows * queries * sizeof(__nv_bfloat16), "queries"));
  attention_out_ = OUTRIDER_TRY(DeviceMemory::Allocate(rows * queries * sizeof(__nv_bfloat16), "attention"));
  const RopeTable table(spec_, options_.max_positions);
  for (const auto& [values, to] : {std::pair{&table.cosines, &cosines_}, std::pair{&table.sines, &sines_}}) {
    *to = OUTRIDER_TRY(DeviceMemory::Allocate(values->size() * sizeof(float), "rotary embedding"));
    OUTRIDER_TRY(
        ToStatus(cudaMemcpyAsync(to->data(), values->data(), to->bytes(), cudaMemcpyHostToDevice, stream_),
                 "uploading"));
  }
  // The table is about to be freed. The copies are on stream_, because it does not wait for other streams.
  return ToStatus(cudaStreamSynchronize(stream_), "uploading");
}

absl::Status DecoderLayers::AllocateCache(int kv_blocks) {
  spare_block_ = kv_blocks;
  const size_t bytes = block_bytes_ * (static_cast<size_t>(kv_blocks) + 1);
  cache_ = OUTRIDER_TRY(DeviceMemory::Allocate(bytes, "the KV pool (--kv-blocks, --block-size)"));
  // Attention reads whole blocks and masks what lies beyond the end, but NaN times 0 is NaN.
  return ToStatus(cudaMemsetAsync(cache_.data(), 0, cache_.bytes(), stream_), "clearing the KV pool");
}

KvLayerView DecoderLayers::KvOf(int layer) const {
  const int64_t block_elements = static_cast<int64_t>(block_bytes_ / sizeof(__nv_bfloat16));
  return {cache_.as<__nv_bfloat16>() + layer * (block_elements / spec_.layers), block_elements,
          options_.block_size};
}

OperandRows DecoderLayers::NextOperand() {
  operand_.data = operands_.data();
  if (operand_type_ == Operand::kFp8) {
    float* const first = operand_scales_.as<float>();
    operand_.row_scales = operand_.row_scales == first ? first + PaddedRows(options_.max_rows) : first;
  }
  return operand_;
}

absl::StatusOr<Product> DecoderLayers::Multiply(const Matrix& matrix, int rows) {
  OUTRIDER_TRY(matmul_.Run(matrix.plan, operands_.data(), matrix.data, product_.as<float>(), rows));
  return Product{product_.as<float>(), operand_.row_scales, matrix.scales};
}

absl::Status DecoderLayers::Attend(const Pass& pass, int layer, __nv_bfloat16* out) {
  const KvLayerView kv = KvOf(layer);
  const int64_t columns = int64_t{heads_.heads} * heads_.head_dim;
  for (const PlannedAttention& part : pass.attention) {
    OUTRIDER_TRY(attention_.Launch(part.plan, part.size,
                                   {.queries = queries_.as<__nv_bfloat16>() + part.first_row * columns,
                                    .query_stride = columns,
                                    .cache = kv.base,
                                    .out = out + part.first_row * columns,
                                    .window = spec_.Slides(layer) ? spec_.sliding_window : 0},
                                   stream_));
  }
  return absl::OkStatus();
}

template <class T>
absl::Status DecoderLayers::ToHost(const Stage& stage, const void* from, size_t count,
                                   std::vector<T>& to) const {
  to.resize(count);
  cudaError_t error = cudaGetLastError();  // set if a kernel could not be launched
  if (error == cudaSuccess)
    error = cudaMemcpyAsync(to.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost, stream_);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream_);
  return ToStatus(error, absl::StrCat("computing layer ", stage.layer, ", ", stage.name));
}

absl::Status DecoderLayers::ObserveResidual(const Stage& stage, const Product& product) const {
  if (!options_.observe) return absl::OkStatus();
  const size_t rows = static_cast<size_t>(stage.rows), columns = static_cast<size_t>(stage.columns);
  std::vector<float> values, added, row_scales(rows, 1.0f), column_scales(columns, 1.0f);
  OUTRIDER_TRY(ToHost(stage, hidden_.data(), rows * columns, values));
  if (product.y != nullptr) OUTRIDER_TRY(ToHost(stage, product.y, rows * columns, added));
  if (product.row_scales != nullptr) OUTRIDER_TRY(ToHost(stage, product.row_scales, rows, row_scales));
  if (product.column_scales != nullptr)
    OUTRIDER_TRY(ToHost(stage, product.column_scales, columns, column_scales));
  for (size_t i = 0; i < added.size(); ++i)
    values[i] += added[i] * row_scales[i / columns] * column_scales[i % columns];
  options_.observe({stage.name, stage.layer, stage.columns, values});
  return absl::OkStatus();
}

absl::Status DecoderLayers::ObserveOperand(const Stage& stage, const OperandRows& rows) const {
  if (!options_.observe) return absl::OkStatus();
  const size_t count = static_cast<size_t>(stage.rows), columns = static_cast<size_t>(stage.columns);
  std::vector<float> values;
  if (rows.row_scales == nullptr) {
    std::vector<uint16_t> stored;
    OUTRIDER_TRY(ToHost(stage, rows.data, count * columns, stored));
    for (const uint16_t value : stored) values.push_back(FromBFloat16(value));
  } else {
    std::vector<uint8_t> stored;
    std::vector<float> scales;
    OUTRIDER_TRY(ToHost(stage, rows.data, count * columns, stored));
    OUTRIDER_TRY(ToHost(stage, rows.row_scales, count, scales));
    for (size_t i = 0; i < stored.size(); ++i) values.push_back(FromFloat8(stored[i]) * scales[i / columns]);
  }
  options_.observe({stage.name, stage.layer, stage.columns, values});
  return absl::OkStatus();
}

absl::Status DecoderLayers::Enqueue(const Pass& pass) {
  const int rows = pass.rows;
  const int hidden = spec_.hidden_size;
  const int queries = spec_.heads * spec_.head_dim;
  const float epsilon = static_cast<float>(spec_.rms_norm_eps);
  float* const residual = hidden_.as<float>();
  LaunchEmbed(pass.tokens, weights_.embedding, residual, rows, hidden, stream_);
  Product product;  // not yet added to the residual stream
  OUTRIDER_TRY(ObserveResidual({kEmbedded, 0, rows, hidden}, product));
  for (int i = 0; i < spec_.layers; ++i) {
    const Layer& layer = weights_.layers[static_cast<size_t>(i)];
    LaunchAddNorm(product, residual, layer.attention_norm, epsilon, NextOperand(), rows, hidden, stream_);
    product = OUTRIDER_TRY(Multiply(layer.qkv, rows));
    const HeadFinish finish = {layer.qkv_bias, layer.query_norm, layer.key_norm, epsilon};
    LaunchRotateAndStore(product, finish, pass.places, cosines_.as<float>(), sines_.as<float>(), heads_,
                         queries_.as<__nv_bfloat16>(), KvOf(i), rows, stream_);
    OUTRIDER_TRY(ObserveOperand({kQueries, i, rows, queries}, {.data = queries_.data()}));
    // In bfloat16, attention writes the next product's operand directly.
    const bool direct = operand_type_ == Operand::kBFloat16;
    __nv_bfloat16* const out = direct ? operands_.as<__nv_bfloat16>() : attention_out_.as<__nv_bfloat16>();
    OUTRIDER_TRY(Attend(pass, i, out));
    OUTRIDER_TRY(ObserveOperand({kAttended, i, rows, queries}, {.data = out}));
    if (!direct) LaunchQuantize(out, NextOperand(), rows, queries, stream_);
    product = OUTRIDER_TRY(Multiply(layer.attention_out, rows));
    OUTRIDER_TRY(ObserveResidual({kAfterAttention, i, rows, hidden}, product));
    LaunchAddNorm(product, residual, layer.mlp_norm, epsilon, NextOperand(), rows, hidden, stream_);
    product = OUTRIDER_TRY(Multiply(layer.gate_up, rows));
    LaunchSiluMul(product, NextOperand(), rows, spec_.intermediate_size, stream_);
    OUTRIDER_TRY(ObserveOperand({kActivated, i, rows, spec_.intermediate_size}, operand_));
    product = OUTRIDER_TRY(Multiply(layer.mlp_out, rows));
    OUTRIDER_TRY(ObserveResidual({kAfterMlp, i, rows, hidden}, product));
  }
  if (pass.logit_count > 0) {
    LaunchAddNormOf(pass.logit_rows, product, residual, weights_.final_norm, epsilon, NextOperand(),
                    pass.logit_count, hidden, stream_);
    const Matrix& head = weights_.head;
    OUTRIDER_TRY(matmul_.Run(head.plan, operands_.data(), head.data, pass.logits, pass.logit_count));
    if (operand_type_ == Operand::kFp8) {
      LaunchScale({pass.logits, operand_.row_scales, head.scales}, pass.logits, pass.logit_count, head.n,
                  stream_);
    }
  }
  return ToStatus(cudaGetLastError(), "enqueuing a forward pass");
}

void DecoderLayers::MoveSlots(absl::Span<const BlockId> blocks, absl::Span<const SlotMove> moves) {
  // A slot has a row of head_dim elements in each head of the keys and of the values of each layer.
  const size_t row = static_cast<size_t>(spec_.head_dim) * sizeof(__nv_bfloat16);
  const size_t slots = static_cast<size_t>(options_.block_size), heads = block_bytes_ / (row * slots);
  const auto place = [&](int slot) {
    const size_t s = static_cast<size_t>(slot), block = static_cast<size_t>(blocks[s / slots]);
    return cache_.data() + block * block_bytes_ + s % slots * row;
  };
  for (const SlotMove& move : moves) {
    cudaMemcpy2DAsync(place(move.to), slots * row, place(move.from), slots * row, row, heads,
                      cudaMemcpyDeviceToDevice, stream_);
  }
}

void DecoderLayers::CopyBlock(BlockId from, BlockId to) {
  if (from == to) return;
  cudaMemcpyAsync(cache_.data() + static_cast<size_t>(to) * block_bytes_,
                  cache_.data() + static_cast<size_t>(from) * block_bytes_, block_bytes_,
                  cudaMemcpyDeviceToDevice, stream_);
}

absl::Status DecoderLayers::ReadSlot(BlockId block, int slot, absl::Span<float> values) {
  std::vector<uint16_t> copy(block_bytes_ / sizeof(__nv_bfloat16));
  OUTRIDER_TRY(
      ToStatus(cudaMemcpyAsync(copy.data(), cache_.data() + static_cast<size_t>(block) * block_bytes_,
                               block_bytes_, cudaMemcpyDeviceToHost, stream_),
               "reading the cache"));
  OUTRIDER_TRY(ToStatus(cudaStreamSynchronize(stream_), "reading the cache"));
  // Take the slot's row from each head of the keys and of the values.
  const size_t dim = static_cast<size_t>(spec_.head_dim), slots = static_cast<size_t>(options_.block_size);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = FromBFloat16(copy[(i / dim * slots + static_cast<size_t>(slot)) * dim + i % dim]);
  }
  return absl::OkStatus();
}

}  // namespace outrider::cuda
