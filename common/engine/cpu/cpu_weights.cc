#include "common/engine/cpu/cpu_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "common/engine/cpu/packed_blocks.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

// Scales each column so that its largest magnitude becomes 127.
template <ElementType kType>
void PackInt8Panel(const char* const* rows, int k, char* to) {
  auto* scales = reinterpret_cast<float*>(to);
  auto* bytes = reinterpret_cast<int8_t*>(to + kScaleBytes);
  for (int column = 0; column < kPanel; ++column) {
    float largest = 0;
    for (int i = 0; rows[column] != nullptr && i < k; ++i) {
      largest = std::max(largest, std::abs(ReadElement<kType>(rows[column], i)));
    }
    scales[column] = largest / 127;
    const float inverse = largest > 0 ? 127 / largest : 0;
    for (int i = 0; i < k; ++i) {
      const float value = rows[column] == nullptr ? 0.0f : ReadElement<kType>(rows[column], i) * inverse;
      bytes[((i / 2) * kPanel + column) * 2 + i % 2] = static_cast<int8_t>(std::lrint(value));
    }
  }
}

// `rows` has a pointer to the elements of each of 32 rows; null for padding.
template <ElementType kType>
void PackPanel(const char* const* rows, int k, Storage storage, char* to) {
  if (storage == Storage::kInt8) return PackInt8Panel<kType>(rows, k, to);
  for (int i = 0; i < k; ++i) {
    for (int column = 0; column < kPanel; ++column) {
      const float value = rows[column] == nullptr ? 0.0f : ReadElement<kType>(rows[column], i);
      if (storage == Storage::kFloat32) {
        reinterpret_cast<float*>(to)[i * kPanel + column] = value;
      } else {
        reinterpret_cast<uint16_t*>(to)[((i / 2) * kPanel + column) * 2 + i % 2] = ToBFloat16(value);
      }
    }
  }
}

void PackBlocks(const MatrixSource& source, int panel, BlockFormat format, char* to) {
  for (int block = 0; block < source.k / kBlockColumns; ++block, to += BytesOf(format)) {
    std::memset(to, 0, BytesOf(format));
    PackedBlock packed(to, format);
    for (int column = 0; column < kPanel; ++column) {
      const size_t i = static_cast<size_t>(panel) * kPanel + static_cast<size_t>(column);
      const MatrixSource::Row row =
          i < source.rows.size() ? source.rows[i] : MatrixSource::Row{0, MatrixSource::kPaddingRow};
      Block read;
      if (row.row != MatrixSource::kPaddingRow) {
        source.blocks[static_cast<size_t>(row.tensor)](row.row, block, read);
      }
      packed.Set(column, read);
    }
  }
}

}  // namespace

MatrixSource Concatenated(std::vector<TensorView> tensors) {
  MatrixSource source;
  source.k = static_cast<int>(tensors[0].shape[1]);
  for (int t = 0; t < static_cast<int>(tensors.size()); ++t) {
    const int rows = static_cast<int>(tensors[static_cast<size_t>(t)].shape[0]);
    for (int row = 0; row < rows; ++row) source.rows.push_back({t, row});
  }
  source.tensors = std::move(tensors);
  return source;
}

MatrixSource InterleavedPanels(TensorView first, TensorView second) {
  MatrixSource source;
  source.k = static_cast<int>(first.shape[1]);
  const int n = static_cast<int>(first.shape[0]);
  for (int panel = 0; panel < n; panel += kPanel) {
    for (int tensor = 0; tensor < 2; ++tensor) {
      for (int row = panel; row < panel + kPanel; ++row) {
        source.rows.push_back({tensor, row < n ? row : MatrixSource::kPaddingRow});
      }
    }
  }
  source.tensors = {std::move(first), std::move(second)};
  return source;
}

size_t PackedBytes(int n, int k, Storage storage) {
  const size_t panels = static_cast<size_t>((n + kPanel - 1) / kPanel);
  const size_t weights = static_cast<size_t>(kPanel) * static_cast<size_t>(k);
  if (storage == Storage::kInt8) return panels * (kScaleBytes + weights);
  if (const BlockFormat blocks = BlockFormatOf(storage); blocks.bits > 0) {
    return panels * static_cast<size_t>(k / kBlockColumns) * BytesOf(blocks);
  }
  return panels * weights * (storage == Storage::kFloat32 ? 4 : 2);
}

void Pack(const MatrixSource& source, Storage storage, ThreadPool& pool, char* to) {
  const int panels = (source.n() + kPanel - 1) / kPanel;
  const size_t panel_bytes = PackedBytes(kPanel, source.k, storage);
  const BlockFormat blocks = BlockFormatOf(storage);
  pool.Run(panels, [&](int panel, int) {
    char* panel_to = to + static_cast<size_t>(panel) * panel_bytes;
    if (blocks.bits > 0) return PackBlocks(source, panel, blocks, panel_to);
    const char* rows[kPanel] = {};
    for (int column = 0; column < kPanel && panel * kPanel + column < source.n(); ++column) {
      const MatrixSource::Row row =
          source.rows[static_cast<size_t>(panel) * kPanel + static_cast<size_t>(column)];
      if (row.row == MatrixSource::kPaddingRow) continue;
      const TensorView& tensor = source.tensors[static_cast<size_t>(row.tensor)];
      rows[column] =
          tensor.data + static_cast<size_t>(row.row) * static_cast<size_t>(source.k) * tensor.element_bytes();
    }
    switch (source.tensors[0].type) {
      case ElementType::kFloat32:
        return PackPanel<ElementType::kFloat32>(rows, source.k, storage, panel_to);
      case ElementType::kBFloat16:
        return PackPanel<ElementType::kBFloat16>(rows, source.k, storage, panel_to);
      case ElementType::kFloat16:
        return PackPanel<ElementType::kFloat16>(rows, source.k, storage, panel_to);
    }
  });
}

void ReadRow(const PackedMatrix& matrix, int row, float* to) {
  const size_t panel_bytes = PackedBytes(kPanel, matrix.k, matrix.storage);
  const BlockFormat format = BlockFormatOf(matrix.storage);
  char* from = const_cast<char*>(matrix.data) + static_cast<size_t>(row / kPanel) * panel_bytes;
  for (int k = 0; k < matrix.k; k += kBlockColumns, from += BytesOf(format)) {
    PackedBlock(from, format).Read(row % kPanel, to + k);
  }
}

namespace {

TensorView AsFloat32(const TensorView& tensor) {
  const auto values = std::make_shared<std::vector<float>>(AllElements(tensor));
  return {ElementType::kFloat32, tensor.shape, reinterpret_cast<const char*>(values->data()), values};
}

// Collects everything that must be packed, so that one allocation of the right size can hold it. Reads a
// matrix only when packing it, then releases it: the source may have allocated memory to convert it.
class Loader {
 public:
  Loader(const TensorSource& source, Storage storage, bool keep_blocks)
      : source_(source), storage_(storage), keep_blocks_(keep_blocks) {}

  // Whether the tensor stays in blocks.
  bool KeepsBlocks(const StoredTensor& tensor) const { return BlocksOfAll({tensor}).bits > 0; }
  bool has_blocks() const { return has_blocks_; }

  // After the first error, all calls do nothing.
  TensorView Get(const StoredTensor& tensor) { return source_.Get(tensor.name, tensor.shape, status_); }

  // Adds the rows of all parts in order, or alternating panels of two parts. Checks the parts before anything
  // is allocated: sizes can be trusted only if the files have tensors of these sizes.
  void AddMatrix(const StoredMatrix& matrix, PackedMatrix* to, bool alternates = false) {
    std::vector<TensorView> shapes;  // without data
    for (const StoredTensor& part : matrix.parts) {
      if (status_.ok()) status_ = source_.Check(part.name, part.shape);
      shapes.emplace_back().shape = part.shape;
    }
    if (!status_.ok()) return;
    MatrixSource source = alternates ? InterleavedPanels(shapes[0], shapes[1]) : Concatenated(shapes);
    const BlockFormat blocks = BlocksOfAll(matrix.parts);
    *to = {nullptr, source.n(), source.k, blocks.bits > 0 ? StorageOf(blocks) : storage_};
    has_blocks_ = has_blocks_ || blocks.bits > 0;
    const size_t offset = Reserve(PackedBytes(to->n, to->k, to->storage));
    matrices_.push_back({matrix.parts, std::move(source), to, offset});
  }

  void AddNorm(const StoredTensor& norm, const float** to) { AddVector({norm}, to); }

  // Adds the elements of all parts, in order.
  void AddVector(const std::vector<StoredTensor>& parts, const float** to) {
    size_t size = 0;
    for (const StoredTensor& part : parts) size += static_cast<size_t>(part.shape[0]);
    size_t offset = Reserve(size * sizeof(float));
    for (const StoredTensor& part : parts) {
      vectors_.push_back({Get(part), static_cast<int>(part.shape[0]), to, offset});
      offset += static_cast<size_t>(part.shape[0]) * sizeof(float);
      to = nullptr;
    }
  }

  absl::StatusOr<Buffer> PackAll(ThreadPool& pool, const std::function<void(double)>& progress) {
    if (!status_.ok()) return status_;
    Buffer memory = OUTRIDER_TRY(Buffer::Allocate(bytes_, "the weights"));
    for (const Vector& vector : vectors_) {
      float* to = reinterpret_cast<float*>(memory.data() + vector.offset);
      ReadElements(vector.source, 0, vector.size, to);
      if (vector.to != nullptr) *vector.to = to;
    }
    for (Matrix& matrix : matrices_) {
      char* to = memory.data() + matrix.offset;
      if (BlockFormatOf(matrix.to->storage).bits > 0) {
        for (const StoredTensor& part : matrix.parts) {
          matrix.source.blocks.push_back(OUTRIDER_TRY(source_.GetBlocks(part.name, part.shape)));
        }
      } else {
        matrix.source.tensors = GetParts(matrix.parts);
      }
      if (!status_.ok()) return status_;
      Pack(matrix.source, matrix.to->storage, pool, to);
      matrix.source.tensors.clear();
      matrix.source.blocks.clear();
      matrix.to->data = to;
      if (progress) {
        const size_t done = matrix.offset + PackedBytes(matrix.to->n, matrix.to->k, matrix.to->storage);
        progress(static_cast<double>(done) / static_cast<double>(bytes_));
      }
    }
    if (progress) progress(1);
    return memory;
  }

 private:
  struct Matrix {
    std::vector<StoredTensor> parts;
    MatrixSource source;
    PackedMatrix* to;
    size_t offset;
  };
  struct Vector {
    TensorView source;
    int size;
    const float** to;  // null for a part that is not the first
    size_t offset;
  };

  // A block format that holds all parts; 0 bits if a part does not stay in blocks.
  BlockFormat BlocksOfAll(const std::vector<StoredTensor>& parts) const {
    BlockFormat all;
    for (const StoredTensor& part : parts) {
      const auto blocks = keep_blocks_ ? source_.BlocksOf(part.name, part.shape) : std::nullopt;
      if (!blocks) return {};
      all = {std::max(all.bits, blocks->bits), all.wide || blocks->wide};
    }
    return all;
  }

  // Reads the parts, all as one type: a checkpoint may have quantised only some of them.
  std::vector<TensorView> GetParts(const std::vector<StoredTensor>& parts) {
    std::vector<TensorView> views;
    for (const StoredTensor& part : parts) views.push_back(Get(part));
    const bool differ = std::any_of(views.begin(), views.end(),
                                    [&](const TensorView& view) { return view.type != views[0].type; });
    if (differ && status_.ok()) std::transform(views.begin(), views.end(), views.begin(), AsFloat32);
    return views;
  }

  size_t Reserve(size_t bytes) {
    const size_t offset = bytes_;
    bytes_ += (bytes + 63) / 64 * 64;
    return offset;
  }

  const TensorSource& source_;
  const Storage storage_;
  const bool keep_blocks_;
  bool has_blocks_ = false;
  absl::Status status_;
  std::vector<Matrix> matrices_;
  std::vector<Vector> vectors_;
  size_t bytes_ = 0;
};

}  // namespace

absl::StatusOr<CpuWeights> LoadCpuWeights(const TensorSource& source, const DecoderConfig& spec,
                                          Storage storage, bool keep_blocks, ThreadPool& pool,
                                          const std::function<void(double)>& progress) {
  CpuWeights weights;
  weights.storage = storage;
  Loader loader(source, storage, keep_blocks);
  const DecoderTensors tensors = TensorsOf(spec);
  const bool table_in_blocks = spec.outer_norms && loader.KeepsBlocks(tensors.embedding);
  const bool is_head = tensors.head.parts[0].name == tensors.embedding.name && spec.head_tokens.empty();
  if (table_in_blocks && !is_head) {
    loader.AddMatrix({tensors.embedding.name, {tensors.embedding}}, &weights.embedding_blocks);
  } else if (spec.outer_norms && !table_in_blocks) {
    weights.embedding = loader.Get(tensors.embedding);
  }
  weights.layers.resize(tensors.layers.size());
  for (size_t i = 0; i < tensors.layers.size(); ++i) {
    const LayerTensors& from = tensors.layers[i];
    CpuLayer& to = weights.layers[i];
    if (i > 0 || spec.outer_norms) loader.AddNorm(from.attention_norm, &to.attention_norm);
    loader.AddMatrix(from.qkv, &to.qkv);
    if (!from.qkv_bias.empty()) loader.AddVector(from.qkv_bias, &to.qkv_bias);
    if (!from.qk_norm.empty()) {
      loader.AddNorm(from.qk_norm[0], &to.query_norm);
      loader.AddNorm(from.qk_norm[1], &to.key_norm);
    }
    loader.AddMatrix(from.attention_out, &to.attention_out);
    loader.AddNorm(from.mlp_norm, &to.mlp_norm);
    loader.AddMatrix(from.gate_up, &to.gate_up, /*alternates=*/true);
    loader.AddMatrix(from.mlp_out, &to.mlp_out);
  }
  if (spec.outer_norms) loader.AddNorm(tensors.final_norm, &weights.final_norm);
  if (spec.outer_norms) loader.AddMatrix(tensors.head, &weights.head);
  weights.memory = OUTRIDER_TRY(loader.PackAll(pool, progress));
  weights.has_blocks = loader.has_blocks();
  if (table_in_blocks && is_head) weights.embedding_blocks = weights.head;
  if (!spec.outer_norms || table_in_blocks) return weights;
  Buffer copy = OUTRIDER_TRY(Buffer::Allocate(weights.embedding.bytes(), "the embedding"));
  std::memcpy(copy.data(), weights.embedding.data, copy.bytes());
  weights.embedding.data = copy.data();
  weights.embedding.memory = nullptr;
  weights.embedding_memory = std::move(copy);
  return weights;
}

}  // namespace outrider
