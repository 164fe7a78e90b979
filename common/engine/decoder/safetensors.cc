#include "common/engine/decoder/safetensors.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/gguf/hash_tensors.h"
#include "common/spec/status.h"
#include "common/text/json.h"
#include "common/text/strings.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

// The format's own limit.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;

// Bytes per element of the types the format knows; 0 for any other.
size_t BytesOf(absl::string_view type) {
  if (type == "F64" || type == "I64" || type == "U64") return 8;
  if (type == "F32" || type == "I32" || type == "U32") return 4;
  if (type == "F16" || type == "BF16" || type == "I16" || type == "U16") return 2;
  if (type == "I8" || type == "U8" || type == "BOOL" || type == "F8_E4M3" || type == "F8_E5M2") return 1;
  return 0;
}

std::string ShapeName(absl::Span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// The value of a JSON array of non-negative integers; nullopt for anything else.
std::optional<std::vector<int64_t>> Sizes(const Json& json) {
  if (!json.is_array()) return std::nullopt;
  std::vector<int64_t> sizes;
  for (const Json& value : json) {
    if (!value.is_number_unsigned()) return std::nullopt;
    const uint64_t size = value.get<uint64_t>();
    if (size > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    sizes.push_back(static_cast<int64_t>(size));
  }
  return sizes;
}

// Whether elements of this shape take exactly `bytes`.
bool ShapeMatches(absl::Span<const int64_t> shape, size_t element_bytes, uint64_t bytes) {
  uint64_t product = element_bytes;
  for (const int64_t size : shape) {
    if (__builtin_mul_overflow(product, static_cast<uint64_t>(size), &product)) return false;
  }
  return product == bytes;
}

}  // namespace

absl::StatusOr<SafeTensors> SafeTensors::Open(const std::string& model_dir) {
  SafeTensors tensors;
  tensors.dir_ = model_dir;
  const std::string single = absl::StrCat(model_dir, "/model.safetensors");
  const std::string index_path = absl::StrCat(model_dir, "/model.safetensors.index.json");
  std::error_code ignored;
  if (std::filesystem::exists(single, ignored) || !std::filesystem::exists(index_path, ignored)) {
    OUTRIDER_TRY(tensors.AddFile(single));
    return tensors;
  }
  const absl::StatusOr<Json> parsed = ParseJson(ReadFile(index_path).value_or(""));
  if (!parsed.ok()) return absl::DataLossError(absl::StrCat(index_path, ": ", parsed.status().message()));
  const Json& index = *parsed;
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    return absl::DataLossError(absl::StrCat(index_path, ": not a JSON object with a weight_map"));
  }
  std::vector<std::string> names;
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    if (!file.is_string() || file.get<std::string>().empty() ||
        absl::StrContains(file.get<std::string>(), '/')) {
      return absl::DataLossError(absl::StrCat(index_path, ": weight_map of ", tensor, " is not a file name"));
    }
    names.push_back(file.get<std::string>());
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  for (const std::string& name : names) OUTRIDER_TRY(tensors.AddFile(absl::StrCat(model_dir, "/", name)));
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    const std::string path = absl::StrCat(model_dir, "/", file.get<std::string>());
    const auto found = tensors.tensors_.find(tensor);
    if (found == tensors.tensors_.end() || tensors.files_[found->second.file].path() != path) {
      return absl::DataLossError(
          absl::StrCat(path, ": no tensor ", tensor, ", though ", index_path, " says so"));
    }
  }
  return tensors;
}

absl::Status SafeTensors::AddFile(const std::string& path) {
  files_.push_back(OUTRIDER_TRY(MappedFile::Open(path)));
  return AddHeader(files_.size() - 1);
}

absl::Status SafeTensors::AddHeader(size_t file) {
  const absl::string_view bytes = files_[file].bytes();
  const auto damaged = [&](const auto&... parts) {
    return absl::DataLossError(absl::StrCat(files_[file].path(), ": ", parts...));
  };
  if (bytes.size() < sizeof(uint64_t)) {
    return damaged("truncated: ", bytes.size(), " bytes, the header's length takes 8");
  }
  uint64_t header_bytes;
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  if (header_bytes > kMaxHeaderBytes || header_bytes > bytes.size() - sizeof(header_bytes)) {
    return damaged("truncated or not safetensors: a header of ", header_bytes, " bytes in a file of ",
                   bytes.size());
  }
  const char* header_begin = bytes.data() + sizeof(header_bytes);
  const char* data_begin = header_begin + header_bytes;
  const uint64_t data_bytes = bytes.size() - sizeof(header_bytes) - header_bytes;
  const absl::StatusOr<Json> parsed = ParseJson({header_begin, header_bytes});
  if (!parsed.ok()) return damaged("the header is ", parsed.status().message());
  const Json& header = *parsed;
  if (!header.is_object()) return damaged("the header is not a JSON object");

  struct Extent {
    uint64_t begin, end;
    std::string name;
  };
  std::vector<Extent> extents;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") continue;
    const auto bad = [&](const auto&... parts) { return damaged("tensor ", name, ": ", parts...); };
    if (!value.is_object() || !value.contains("dtype") || !value["dtype"].is_string()) return bad("no dtype");
    const std::string type = value["dtype"].get<std::string>();
    const std::optional<std::vector<int64_t>> shape = Sizes(value.value("shape", Json()));
    const std::optional<std::vector<int64_t>> offsets = Sizes(value.value("data_offsets", Json()));
    if (!shape.has_value()) return bad("no shape");
    if (!offsets.has_value() || offsets->size() != 2) return bad("no data_offsets");
    const uint64_t begin = static_cast<uint64_t>((*offsets)[0]);
    const uint64_t end = static_cast<uint64_t>((*offsets)[1]);
    if (begin > end) return bad("data_offsets ", ShapeName(*offsets), " descend");
    if (end > data_bytes) return bad("truncated: it ends at byte ", end, " of ", data_bytes);
    const size_t element_bytes = BytesOf(type);
    if (element_bytes != 0 && !ShapeMatches(*shape, element_bytes, end - begin)) {
      return bad("shape ", ShapeName(*shape), " of ", type, " does not take its ", end - begin, " bytes");
    }
    if (tensors_.contains(name)) return bad("it is in another file, too");
    absl::string_view data(data_begin + begin, end - begin);
    // TensorView promises alignment, which the format recommends but does not guarantee. The memory of a
    // string is aligned to at least 8 bytes.
    if (element_bytes != 0 && reinterpret_cast<uintptr_t>(data.data()) % element_bytes != 0) {
      data = copies_.emplace_back(data);
    }
    tensors_[name] = {file, type, *shape, data};
    extents.push_back({begin, end, name});
  }
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t expected = 0;
  for (const Extent& extent : extents) {
    if (extent.begin < expected) return damaged("tensor ", extent.name, ": overlaps the one before it");
    if (extent.begin > expected) return damaged("tensor ", extent.name, ": a gap before it");
    expected = extent.end;
  }
  if (expected != data_bytes) return damaged(data_bytes - expected, " bytes after the last tensor");
  return absl::OkStatus();
}

const SafeTensors::Stored* SafeTensors::Find(absl::string_view name) const {
  auto found = tensors_.find(name);
  // A checkpoint of the model without its head lacks the prefix. transformers reads both.
  if (found == tensors_.end() && absl::ConsumePrefix(&name, "model.")) found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

absl::Status SafeTensors::Refuse(absl::string_view name, absl::string_view why) const {
  const Stored* const found = Find(name);
  const std::string& where = found != nullptr ? files_[found->file].path() : Where();
  return Invalid(where, ": tensor ", name, ": ", why);
}

absl::StatusOr<const SafeTensors::Stored*> SafeTensors::FindWithShape(absl::string_view name,
                                                                      absl::Span<const int64_t> shape) const {
  const Stored* const found = Find(name);
  if (found == nullptr) return Invalid(Where(), ": no tensor ", name);
  if (found->shape != shape) {
    return Refuse(name, absl::StrCat("shape ", ShapeName(found->shape), ", expected ", ShapeName(shape)));
  }
  return found;
}

absl::StatusOr<TensorView> SafeTensors::Get(absl::string_view name, absl::Span<const int64_t> shape) const {
  const Stored* const found = OUTRIDER_TRY(FindWithShape(name, shape));
  const std::string& type = found->type;
  if (type != "F32" && type != "BF16" && type != "F16") {
    return Refuse(name, absl::StrCat("dtype ", type, ", expected F32, BF16 or F16"));
  }
  const ElementType read = type == "F32"    ? ElementType::kFloat32
                           : type == "BF16" ? ElementType::kBFloat16
                                            : ElementType::kFloat16;
  return TensorView{read, found->shape, found->data.data()};
}

absl::StatusOr<absl::string_view> SafeTensors::GetBytes(absl::string_view name, absl::string_view type,
                                                        absl::Span<const int64_t> shape) const {
  const Stored* const found = OUTRIDER_TRY(FindWithShape(name, shape));
  if (found->type != type) return Refuse(name, absl::StrCat("dtype ", found->type, ", expected ", type));
  return found->data;
}

uint64_t SafeTensors::Hash() const {
  return HashTensors(tensors_, [](const Stored& tensor) { return tensor.type; });
}

}  // namespace outrider
