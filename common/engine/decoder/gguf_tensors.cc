#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/engine/decoder/gguf_model.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

using Shape = absl::Span<const int64_t>;

struct Name {
  absl::string_view ours, theirs;
};

constexpr Name kOutside[] = {
    {"model.embed_tokens", "token_embd"}, {"model.norm", "output_norm"}, {"lm_head", "output"}};
constexpr Name kInLayer[] = {{"input_layernorm", "attn_norm"},
                             {"self_attn.q_proj", "attn_q"},
                             {"self_attn.k_proj", "attn_k"},
                             {"self_attn.v_proj", "attn_v"},
                             {"self_attn.o_proj", "attn_output"},
                             {"self_attn.q_norm", "attn_q_norm"},
                             {"self_attn.k_norm", "attn_k_norm"},
                             {"mlp.gate_proj", "ffn_gate"},
                             {"mlp.up_proj", "ffn_up"},
                             {"mlp.down_proj", "ffn_down"},
                             {"pre_feedforward_layernorm", "ffn_norm"},
                             {"post_feedforward_layernorm", "post_ffw_norm"}};
constexpr absl::string_view kAttentionOrMlpNorm = "post_attention_layernorm";

// The file's name for a tensor of DecoderTensors; empty for any other tensor.
std::string NameInFile(absl::string_view name, bool output_norms) {
  const size_t dot = name.rfind('.');
  const absl::string_view kind = name.substr(std::min(dot, name.size()));  // ".weight", ".bias"
  absl::ConsumeSuffix(&name, kind);
  for (const Name& outside : kOutside) {
    if (name == outside.ours) return absl::StrCat(outside.theirs, kind);
  }
  if (!absl::ConsumePrefix(&name, "model.layers.")) return "";
  const absl::string_view layer = name.substr(0, name.find('.'));
  if (layer.size() == name.size()) return "";
  name.remove_prefix(layer.size() + 1);
  const auto in_layer = [&](absl::string_view theirs) {
    return absl::StrCat("blk.", layer, ".", theirs, kind);
  };
  if (name == kAttentionOrMlpNorm) return in_layer(output_norms ? "post_attention_norm" : "ffn_norm");
  for (const Name& inside : kInLayer) {
    if (name == inside.ours) return in_layer(inside.theirs);
  }
  return "";
}

// The file's row for row `row` of the queries or keys. In each head, the file alternates between rows of the
// first half and of the second half.
int64_t RowInFile(int64_t row, int64_t head_dim) {
  const int64_t head = row / head_dim, number = row % head_dim, half = head_dim / 2;
  return head * head_dim + number % half * 2 + number / half;
}

// The shape without leading ones, which a file does not have.
Shape Significant(Shape shape) {
  while (shape.size() > 1 && shape.front() == 1) shape.remove_prefix(1);
  return shape;
}

std::optional<ElementType> ElementOf(int type) {
  switch (type) {
    case GgufFile::kFloat32:
      return ElementType::kFloat32;
    case GgufFile::kFloat16:
      return ElementType::kFloat16;
    case GgufFile::kBFloat16:
      return ElementType::kBFloat16;
    default:
      return std::nullopt;
  }
}

}  // namespace

GgufTensors::GgufTensors(const GgufFile& file, const DecoderConfig& spec)
    : file_(file),
      head_dim_(spec.head_dim),
      rotates_neighbours_(file.metadata().value("general.architecture", "") == "llama"),
      output_norms_(spec.output_norms) {}

absl::StatusOr<const GgufFile::Tensor*> GgufTensors::Find(absl::string_view name, Shape shape) const {
  const std::string theirs = NameInFile(name, output_norms_);
  const GgufFile::Tensor* const found = file_.Find(theirs);
  if (found == nullptr) return Invalid(file_.path(), ": no tensor ", theirs.empty() ? name : theirs);
  const auto refuse = [&](const auto&... parts) {
    return Invalid(file_.PathOf(*found), ": tensor ", theirs, ": ", parts...);
  };
  if (Significant(found->shape) != Significant(shape)) {
    return refuse("shape [", absl::StrJoin(found->shape, ", "), "], expected [", absl::StrJoin(shape, ", "),
                  "]");
  }
  if (!ElementOf(found->type) && !GgufFile::CanBeFloat(found->type)) {
    return refuse("type ", GgufFile::TypeName(found->type), ", which has no numbers to compute with");
  }
  return found;
}

absl::Status GgufTensors::Check(absl::string_view name, Shape shape) const {
  return Find(name, shape).status();
}

std::function<int64_t(int64_t row)> GgufTensors::RowOrder(absl::string_view name) const {
  const bool reordered =
      rotates_neighbours_ && (absl::StrContains(name, ".q_proj.") || absl::StrContains(name, ".k_proj."));
  if (!reordered) return nullptr;
  return [head_dim = int64_t{head_dim_}](int64_t row) { return RowInFile(row, head_dim); };
}

absl::StatusOr<TensorView> GgufTensors::Get(absl::string_view name, Shape shape) const {
  const GgufFile::Tensor& tensor = *OUTRIDER_TRY(Find(name, shape));
  const std::optional<ElementType> element = ElementOf(tensor.type);
  const auto row_in_file = RowOrder(name);
  TensorView view{element.value_or(ElementType::kFloat32), {shape.begin(), shape.end()}, tensor.data.data()};
  const bool is_aligned = reinterpret_cast<uintptr_t>(view.data) % view.element_bytes() == 0;
  if (element && is_aligned && !row_in_file) return view;

  const int64_t rows = shape.size() > 1 || row_in_file ? shape[0] : 1;
  const size_t row_bytes = tensor.data.size() / static_cast<size_t>(std::max<int64_t>(rows, 1));
  const size_t columns = view.elements() / static_cast<size_t>(std::max<int64_t>(rows, 1));
  std::shared_ptr<char[]> memory;
  try {
    memory = std::make_shared_for_overwrite<char[]>(view.bytes());
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(absl::StrCat(file_.path(), ": no memory to unpack ", name));
  }
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t from = row_in_file ? row_in_file(row) : row;
    const char* const data = tensor.data.data() + static_cast<size_t>(from) * row_bytes;
    char* const to = memory.get() + static_cast<size_t>(row) * columns * view.element_bytes();
    if (element) {
      std::memcpy(to, data, row_bytes);
    } else {
      GgufFile::ToFloat(tensor.type, data, static_cast<int64_t>(columns), reinterpret_cast<float*>(to));
    }
  }
  view.data = memory.get();
  view.memory = std::move(memory);
  return view;
}

}  // namespace outrider
