// The shapes of Llama 3.2, from the models' config.json, except for the context, which only sizes the KV
// pool.
#pragma once

#include "bench/generated_model.h"

namespace outrider {

inline constexpr ModelShape kLlama3B = {.vocab = 128256,
                                        .hidden = 3072,
                                        .intermediate = 8192,
                                        .layers = 28,
                                        .heads = 24,
                                        .kv_heads = 8,
                                        .head_dim = 128,
                                        .context = 2048};
inline constexpr ModelShape kLlama1B = {.vocab = 128256,
                                        .hidden = 2048,
                                        .intermediate = 8192,
                                        .layers = 16,
                                        .heads = 32,
                                        .kv_heads = 8,
                                        .head_dim = 64,
                                        .context = 2048};

// Replacements for runs whose results do not matter and that must be fast even on an emulated GPU. Heads have
// the real sizes, since kernels support only these.
inline constexpr ModelShape kTiny3B = {.vocab = 4096,
                                       .hidden = 128,
                                       .intermediate = 256,
                                       .layers = 2,
                                       .heads = 3,
                                       .kv_heads = 1,
                                       .head_dim = 128,
                                       .context = 512};
inline constexpr ModelShape kTiny1B = {.vocab = 4096,
                                       .hidden = 64,
                                       .intermediate = 128,
                                       .layers = 2,
                                       .heads = 4,
                                       .kv_heads = 1,
                                       .head_dim = 64,
                                       .context = 512};

}  // namespace outrider
