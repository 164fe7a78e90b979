// The weights of a decoder in device memory.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/engine/cuda/device_memory.h"
#include "common/engine/cuda/matmul.h"
#include "common/engine/decoder/decoder_spec.h"
#include "common/engine/decoder/tensor_source.h"

namespace outrider::cuda {

// A matrix [n, k] of the operand's type, for matmul.h.
struct Matrix {
  const void* data = nullptr;
  const float* scales = nullptr;  // [n]; fp8 only
  int n = 0;
  int k = 0;
  int plan = 0;  // of Matmul
};

struct Layer {
  const float* attention_norm = nullptr;  // [hidden]
  Matrix qkv;                             // queries, keys, values of all heads
  const float* qkv_bias = nullptr;        // [columns of qkv]; null unless spec.qkv_bias
  const float* query_norm = nullptr;      // [head_dim]; both null unless spec.qk_norm
  const float* key_norm = nullptr;
  Matrix attention_out;
  const float* mlp_norm = nullptr;
  Matrix gate_up;  // all of gate, then all of up
  Matrix mlp_out;
};

struct Weights {
  std::vector<DeviceMemory> memory;          // holds everything below
  size_t bytes = 0;                          // size of `memory`
  const __nv_bfloat16* embedding = nullptr;  // [vocab, hidden]
  std::vector<Layer> layers;
  const float* final_norm = nullptr;
  Matrix head;  // the embedding itself if they are tied and bfloat16
};

// Uploads the weights as bfloat16, rounded to nearest even, quantises the
// matrices to fp8 on the device if `operand` says so, and plans the products. Errors are those of the source
// and of CUDA. `progress` may be null.
absl::StatusOr<Weights> LoadWeights(const TensorSource& source, const DecoderSpec& spec, Operand operand,
                                    Matmul& matmul, cudaStream_t stream,
                                    const std::function<void(double)>& progress);

}  // namespace outrider::cuda
