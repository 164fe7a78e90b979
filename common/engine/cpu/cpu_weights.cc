#include "common/engine/cpu/cpu_weights.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/engine/cpu/packing.h"
#include "common/engine/decoder/elements.h"

namespace outrider {
namespace {

// Collects what has to be packed and where to, so that one allocation of the right size can hold it all.
class Loader {
 public:
  Loader(const SafeTensors& files, Storage storage) : files_(files), storage_(storage) {}

  // The first error makes all later calls do nothing.
  TensorView Get(const std::string& name, const std::vector<int64_t>& shape) {
    return files_.Get(name, shape, status_);
  }

  void AddMatrix(const std::string& name, PackedMatrix* to, bool interleave, std::vector<TensorView> parts) {
    for (const TensorView& part : parts) {
      if (status_.ok() && part.type != parts[0].type) {
        status_ = absl::InvalidArgumentError(absl::StrCat(name, ": its weights have different dtypes"));
      }
    }
    if (!status_.ok()) return;
    MatrixSource source = interleave ? InterleavedPanels(std::move(parts[0]), std::move(parts[1]))
                                     : Concatenated(std::move(parts));
    *to = {nullptr, source.n(), source.k};
    const size_t bytes = PackedBytes(to->n, to->k, storage_);
    matrices_.push_back({std::move(source), to, Reserve(bytes)});
  }

  void AddNorm(const std::string& name, int size, const float** to) {
    TensorView view = Get(name, {size});
    norms_.push_back({std::move(view), size, to, Reserve(static_cast<size_t>(size) * sizeof(float))});
  }

  absl::StatusOr<Buffer> PackAll(ThreadPool& pool, const std::function<void(double)>& progress) {
    if (!status_.ok()) return status_;
    absl::StatusOr<Buffer> memory = Buffer::Allocate(bytes_, "weights");
    if (!memory.ok()) return memory.status();
    for (const Norm& norm : norms_) {
      float* to = reinterpret_cast<float*>(memory->data() + norm.offset);
      ReadElements(norm.source, 0, norm.size, to);
      *norm.to = to;
    }
    for (const Matrix& matrix : matrices_) {
      char* to = memory->data() + matrix.offset;
      Pack(matrix.source, storage_, pool, to);
      matrix.to->data = to;
      if (progress) {
        const size_t done = matrix.offset + PackedBytes(matrix.to->n, matrix.to->k, storage_);
        progress(static_cast<double>(done) / static_cast<double>(bytes_));
      }
    }
    if (progress) progress(1);
    return memory;
  }

 private:
  struct Matrix {
    MatrixSource source;
    PackedMatrix* to;
    size_t offset;
  };
  struct Norm {
    TensorView source;
    int size;
    const float** to;
    size_t offset;
  };

  size_t Reserve(size_t bytes) {
    const size_t offset = bytes_;
    bytes_ += (bytes + 63) / 64 * 64;
    return offset;
  }

  const SafeTensors& files_;
  const Storage storage_;
  absl::Status status_;
  std::vector<Matrix> matrices_;
  std::vector<Norm> norms_;
  size_t bytes_ = 0;
};

}  // namespace

absl::StatusOr<CpuWeights> LoadCpuWeights(const std::string& model_dir, const ModelConfig& config,
                                          Storage storage, ThreadPool& pool,
                                          const std::function<void(double)>& progress) {
  absl::StatusOr<SafeTensors> files = SafeTensors::Open(model_dir);
  if (!files.ok()) return files.status();
  CpuWeights weights;
  weights.files = *std::move(files);
  weights.storage = storage;
  Loader loader(weights.files, storage);
  const int hidden = config.hidden_size;
  const int queries = config.heads * config.head_dim;
  const int keys = config.kv_heads * config.head_dim;

  weights.embedding = loader.Get("model.embed_tokens.weight", {config.vocab_size, hidden});
  weights.layers.resize(static_cast<size_t>(config.layers));
  for (int i = 0; i < config.layers; ++i) {
    const std::string name = absl::StrCat("model.layers.", i, ".");
    CpuLayer& layer = weights.layers[static_cast<size_t>(i)];
    loader.AddNorm(name + "input_layernorm.weight", hidden, &layer.attention_norm);
    loader.AddMatrix(name + "self_attn", &layer.qkv, false,
                     {loader.Get(name + "self_attn.q_proj.weight", {queries, hidden}),
                      loader.Get(name + "self_attn.k_proj.weight", {keys, hidden}),
                      loader.Get(name + "self_attn.v_proj.weight", {keys, hidden})});
    loader.AddMatrix(name + "self_attn", &layer.attention_out, false,
                     {loader.Get(name + "self_attn.o_proj.weight", {hidden, queries})});
    loader.AddNorm(name + "post_attention_layernorm.weight", hidden, &layer.mlp_norm);
    loader.AddMatrix(name + "mlp", &layer.gate_up, true,
                     {loader.Get(name + "mlp.gate_proj.weight", {config.intermediate_size, hidden}),
                      loader.Get(name + "mlp.up_proj.weight", {config.intermediate_size, hidden})});
    loader.AddMatrix(name + "mlp", &layer.mlp_out, false,
                     {loader.Get(name + "mlp.down_proj.weight", {hidden, config.intermediate_size})});
  }
  loader.AddNorm("model.norm.weight", hidden, &weights.final_norm);
  loader.AddMatrix("lm_head", &weights.head, false,
                   {config.tie_word_embeddings ? weights.embedding
                                               : loader.Get("lm_head.weight", {config.vocab_size, hidden})});
  absl::StatusOr<Buffer> memory = loader.PackAll(pool, progress);
  if (!memory.ok()) return memory.status();
  weights.memory = *std::move(memory);
  return weights;
}

}  // namespace outrider
