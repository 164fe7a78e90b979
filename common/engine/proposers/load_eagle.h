// Loads EAGLE and EAGLE-3 (eagle.h) from published layouts.
//
// The layout of the authors' releases (github.com/SafeAILab/EAGLE: eagle/model/cnets1.py, cnets.py) is also
// ours: the config of a Llama with one layer, and the tensors
//
//   EAGLE    fc.weight [hidden, 2 hidden], fc.bias where there is one, layers.0.* without input_layernorm
//   EAGLE-3  fc.weight [hidden, 3 hidden], midlayer.* with hidden_norm, and projections to queries, keys and
//            values of 2 hidden columns; norm.weight
//   both     lm_head.weight [draft_vocab_size, hidden], d2t [draft_vocab_size]: see ReadHead; t2d, which says
//            the same as d2t, and copies of the target's embedding are not read
//
// Config fields besides a Llama's: draft_vocab_size, norm_before_residual; in ours also eagle_version, 1 or
// 3, and feature_layers, which others call eagle_aux_hidden_state_layer_ids.
//
// The layout of "speculators" (github.com/vllm-project/speculators: src/speculators/models/eagle.py,
// eagle3.py, and vLLM's vllm/model_executor/models/llama_eagle.py, llama_eagle3.py) has the Llama's fields in
// transformer_layer_config, speculators_model_type "eagle" or "eagle3", and other names:
//
//   eagle    fusion_fc.weight, with fusion_bias fusion_fc.bias; transformer.*
//   eagle3   layers.0.* for midlayer.*
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/engine/decoder/decoder_spec.h"
#include "common/engine/decoder/field_reader.h"
#include "common/engine/proposers/head_folder.h"
#include "common/engine/proposers/proposer.h"

namespace outrider {

// Reads the layer as a decoder. INVALID_ARGUMENT, naming file and field.
absl::StatusOr<DecoderSpec> ReadEagleSpec(FieldReader& fields, const DecoderSpec& target);

// Errors are those of LoadProposers.
absl::StatusOr<std::unique_ptr<Proposer>> LoadEagle(const HeadFolder& folder);

}  // namespace outrider
