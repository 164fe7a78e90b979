// The intermediate results of a forward pass, for tools that compare engines.
#pragma once

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace outrider {

// In the order in which a pass computes them. Keys and values are read from the cache (Model::ReadSlot).
inline constexpr absl::string_view kEmbedded = "embedded";  // [hidden], before the first layer
inline constexpr absl::string_view kQueries = "queries";    // [heads * head_dim], rotated and not scaled
inline constexpr absl::string_view kAttended = "attended";  // [heads * head_dim]
inline constexpr absl::string_view kAfterAttention = "after attention";  // [hidden], the residual stream
inline constexpr absl::string_view kActivated = "activated";     // [intermediate], the MLP's inner rows
inline constexpr absl::string_view kAfterMlp = "after the MLP";  // [hidden], the residual stream

// The rows of one stage, for RunnerOptions::observe, which Model::Forward calls on its thread, once per stage
// of every forward pass, including those that draft tokens. If processes share a model, rank 0 shows its
// share of the heads and of the MLP's columns.
//
// The rows are the batch's tokens, in its order. From kAfterAttention of the last layer on, a model may omit
// rows that return no logits, so comparisons should request all logits. A model that pads its batches shows
// further, meaningless rows at the end.
struct StageOutput {
  absl::string_view name;  // one of the above
  int layer = 0;           // from 0; kEmbedded: 0
  int columns = 0;
  absl::Span<const float> values;  // [rows, columns], valid during the call
};

}  // namespace outrider
