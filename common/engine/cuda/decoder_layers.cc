#include "common/engine/cuda/decoder_layers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/engine/decoder/tensor_source.h"

namespace outrider::cuda {
namespace {

constexpr size_t kBFloat16Bytes = 2;

}  // namespace

absl::StatusOr<std::unique_ptr<DecoderLayers>> DecoderLayers::Create(const DecoderConfig& spec,
                                                                     Weights weights, Operand operand,
                                                                     Matmul& matmul, Attention& attention,
                                                                     const Options& options,
                                                                     cudaStream_t stream) {
  std::unique_ptr<DecoderLayers> layers(
      new DecoderLayers(spec, std::move(weights), operand, matmul, attention, options, stream));
  absl::Status status = layers->AllocateMemory();
  if (status.ok()) status = layers->UploadRope();
  if (!status.ok()) return status;
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
      block_bytes_(kBFloat16Bytes * spec.kv_numbers() * static_cast<size_t>(options.block_size)) {}

absl::Status DecoderLayers::AllocateMemory() {
  const size_t rows = static_cast<size_t>(PaddedRows(options_.max_rows));
  const size_t hidden = static_cast<size_t>(spec_.hidden_size);
  const size_t queries = static_cast<size_t>(spec_.heads * spec_.head_dim);
  const size_t keys = static_cast<size_t>(spec_.kv_heads * spec_.head_dim);
  const size_t intermediate = static_cast<size_t>(spec_.intermediate_size);
  return AllocateAll({
      {hidden_, rows * hidden * sizeof(float), "hidden states"},
      {operands_, rows * std::max({hidden, queries, intermediate}) * OperandBytes(operand_type_), "operands"},
      {operand_scales_, 2 * rows * sizeof(float), "scales of operands"},
      {product_, rows * std::max({hidden, queries + 2 * keys, 2 * intermediate}) * sizeof(float), "products"},
      {queries_, rows * queries * kBFloat16Bytes, "queries"},
      {attention_out_, rows * queries * kBFloat16Bytes, "attention"},
  });
}

absl::Status DecoderLayers::AllocateCache(int kv_blocks) {
  spare_block_ = kv_blocks;
  const size_t bytes = block_bytes_ * (static_cast<size_t>(kv_blocks) + 1);
  const absl::Status status = AllocateAll({{cache_, bytes, "the KV pool (--kv-blocks, --block-size)"}});
  if (!status.ok()) return status;
  // Attention reads whole blocks and masks what lies beyond the end, but NaN times 0 is NaN.
  return ToStatus(cudaMemsetAsync(cache_.data(), 0, cache_.bytes(), stream_), "clearing the KV pool");
}

absl::Status DecoderLayers::UploadRope() {
  const RopeTable table(spec_, options_.max_positions);
  for (const auto& [values, to] : {std::pair{&table.cosines, &cosines_}, std::pair{&table.sines, &sines_}}) {
    absl::Status status = AllocateAll({{*to, values->size() * sizeof(float), "rotary embedding"}});
    if (!status.ok()) return status;
    status =
        ToStatus(cudaMemcpyAsync(to->data(), values->data(), to->bytes(), cudaMemcpyHostToDevice, stream_),
                 "uploading");
    if (!status.ok()) return status;
  }
  // The table is about to go away. The model's stream does not wait for others, so the copy has to be on it.
  return ToStatus(cudaStreamSynchronize(stream_), "uploading");
}

KvLayerView DecoderLayers::KvOf(int layer) const {
  const int64_t block_elements = static_cast<int64_t>(block_bytes_ / kBFloat16Bytes);
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
  const absl::Status status =
      matmul_.Run(matrix.plan, operands_.data(), matrix.data, product_.as<float>(), rows);
  if (!status.ok()) return status;
  return Product{product_.as<float>(), operand_.row_scales, matrix.scales};
}

absl::Status DecoderLayers::Attend(const Pass& pass, int layer, __nv_bfloat16* out) {
  const KvLayerView kv = KvOf(layer);
  const int64_t columns = int64_t{heads_.heads} * heads_.head_dim;
  for (const PlannedAttention& part : pass.attention) {
    const absl::Status status =
        attention_.Launch(part.plan, part.size,
                          {.queries = queries_.as<__nv_bfloat16>() + part.first_row * columns,
                           .query_stride = columns,
                           .cache = kv.base,
                           .out = out + part.first_row * columns,
                           .window = spec_.Slides(layer) ? spec_.sliding_window : 0},
                          stream_);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

template <class T>
absl::Status DecoderLayers::ToHost(const Stage& stage, const void* from, size_t count,
                                   std::vector<T>& to) const {
  to.resize(count);
  cudaError_t error = cudaGetLastError();  // where a kernel could not be launched
  if (error == cudaSuccess)
    error = cudaMemcpyAsync(to.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost, stream_);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream_);
  return ToStatus(error, absl::StrCat("computing layer ", stage.layer, ", ", stage.name));
}

absl::Status DecoderLayers::ObserveResidual(const Stage& stage, const Product& product) const {
  if (!options_.observe) return absl::OkStatus();
  const size_t rows = static_cast<size_t>(stage.rows), columns = static_cast<size_t>(stage.columns);
  std::vector<float> values, added, row_scales(rows, 1.0f), column_scales(columns, 1.0f);
  absl::Status status = ToHost(stage, hidden_.data(), rows * columns, values);
  if (status.ok() && product.y != nullptr) status = ToHost(stage, product.y, rows * columns, added);
  if (status.ok() && product.row_scales != nullptr)
    status = ToHost(stage, product.row_scales, rows, row_scales);
  if (status.ok() && product.column_scales != nullptr)
    status = ToHost(stage, product.column_scales, columns, column_scales);
  if (!status.ok()) return status;
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
    const absl::Status status = ToHost(stage, rows.data, count * columns, stored);
    if (!status.ok()) return status;
    for (const uint16_t value : stored) values.push_back(FromBFloat16(value));
  } else {
    std::vector<uint8_t> stored;
    std::vector<float> scales;
    absl::Status status = ToHost(stage, rows.data, count * columns, stored);
    if (status.ok()) status = ToHost(stage, rows.row_scales, count, scales);
    if (!status.ok()) return status;
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
  absl::StatusOr<Product> product = Product{};  // not yet added to the residual stream
  absl::Status status = ObserveResidual({kEmbedded, 0, rows, hidden}, *product);
  if (!status.ok()) return status;
  for (int i = 0; i < spec_.layers; ++i) {
    const Layer& layer = weights_.layers[static_cast<size_t>(i)];
    LaunchAddNorm(*product, residual, layer.attention_norm, epsilon, NextOperand(), rows, hidden, stream_);
    product = Multiply(layer.qkv, rows);
    if (!product.ok()) return product.status();
    const HeadFinish finish = {layer.qkv_bias, layer.query_norm, layer.key_norm, epsilon};
    LaunchRotateAndStore(*product, finish, pass.places, cosines_.as<float>(), sines_.as<float>(), heads_,
                         queries_.as<__nv_bfloat16>(), KvOf(i), rows, stream_);
    status = ObserveOperand({kQueries, i, rows, queries}, {.data = queries_.data()});
    if (!status.ok()) return status;
    // In bfloat16, attention writes the next product's operand directly.
    const bool direct = operand_type_ == Operand::kBFloat16;
    __nv_bfloat16* const out = direct ? operands_.as<__nv_bfloat16>() : attention_out_.as<__nv_bfloat16>();
    status = Attend(pass, i, out);
    if (status.ok()) status = ObserveOperand({kAttended, i, rows, queries}, {.data = out});
    if (!status.ok()) return status;
    if (!direct) LaunchQuantize(out, NextOperand(), rows, queries, stream_);
    product = Multiply(layer.attention_out, rows);
    if (!product.ok()) return product.status();
    status = ObserveResidual({kAfterAttention, i, rows, hidden}, *product);
    if (!status.ok()) return status;
    LaunchAddNorm(*product, residual, layer.mlp_norm, epsilon, NextOperand(), rows, hidden, stream_);
    product = Multiply(layer.gate_up, rows);
    if (!product.ok()) return product.status();
    LaunchSiluMul(*product, NextOperand(), rows, spec_.intermediate_size, stream_);
    status = ObserveOperand({kActivated, i, rows, spec_.intermediate_size}, operand_);
    if (!status.ok()) return status;
    product = Multiply(layer.mlp_out, rows);
    if (!product.ok()) return product.status();
    status = ObserveResidual({kAfterMlp, i, rows, hidden}, *product);
    if (!status.ok()) return status;
  }
  if (pass.logit_count > 0) {
    LaunchAddNormOf(pass.logit_rows, *product, residual, weights_.final_norm, epsilon, NextOperand(),
                    pass.logit_count, hidden, stream_);
    const Matrix& head = weights_.head;
    status = matmul_.Run(head.plan, operands_.data(), head.data, pass.logits, pass.logit_count);
    if (!status.ok()) return status;
    if (operand_type_ == Operand::kFp8) {
      LaunchScale({pass.logits, operand_.row_scales, head.scales}, pass.logits, pass.logit_count, head.n,
                  stream_);
    }
  }
  return ToStatus(cudaGetLastError(), "enqueuing a forward pass");
}

void DecoderLayers::MoveSlots(absl::Span<const BlockId> blocks, absl::Span<const SlotMove> moves) {
  // A slot has a row of head_dim elements in each head of the keys and of the values of each layer.
  const size_t row = static_cast<size_t>(spec_.head_dim) * kBFloat16Bytes;
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
  std::vector<uint16_t> copy(block_bytes_ / kBFloat16Bytes);
  absl::Status status =
      ToStatus(cudaMemcpyAsync(copy.data(), cache_.data() + static_cast<size_t>(block) * block_bytes_,
                               block_bytes_, cudaMemcpyDeviceToHost, stream_),
               "reading the cache");
  if (status.ok()) status = ToStatus(cudaStreamSynchronize(stream_), "reading the cache");
  if (!status.ok()) return status;
  // Of each head of keys or values, the slot's row.
  const size_t dim = static_cast<size_t>(spec_.head_dim), slots = static_cast<size_t>(options_.block_size);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = FromBFloat16(copy[(i / dim * slots + static_cast<size_t>(slot)) * dim + i % dim]);
  }
  return absl::OkStatus();
}

}  // namespace outrider::cuda
