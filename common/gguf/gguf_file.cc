#include "common/gguf/gguf_file.h"

#include <ggml.h>
#include <gguf.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/gguf/hash_tensors.h"
#include "common/gguf/model_path.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

// ggml compares each key and each tensor with all earlier ones. The largest models have a few thousand.
constexpr int64_t kMaxEntries = 1 << 14;
constexpr int kMaxShards = 9999;
static_assert(GgufFile::kFloat32 == GGML_TYPE_F32 && GgufFile::kFloat16 == GGML_TYPE_F16 &&
              GgufFile::kBFloat16 == GGML_TYPE_BF16);

// Text from the file, escaped and on one line.
std::string Escaped(absl::string_view words) {
  return absl::StrReplaceAll(absl::Utf8SafeCEscape(words), {{"\\'", "'"}, {"\\\"", "\""}});
}

// Collects ggml's complaints about the file that this thread is parsing; null: it parses none.
thread_local std::string* complaints = nullptr;

// Drops the name of a function that begins a complaint, and the line end.
void TakeComplaint(ggml_log_level /*level*/, const char* text, void* /*user_data*/) {
  if (complaints == nullptr) return;
  absl::string_view words = absl::StripAsciiWhitespace(text);
  if (const size_t colon = words.find(": "); colon != words.npos) words.remove_prefix(colon + 2);
  absl::StrAppend(complaints, complaints->empty() ? "" : "; ", Escaped(words));
}

// Element `i` of an array of numbers. `type` is that of an element, and neither a string nor an array.
Json NumberAt(gguf_type type, const void* data, size_t i) {
  const auto at = [&]<class T>(T /*any*/) { return Json(static_cast<const T*>(data)[i]); };
  switch (type) {
    case GGUF_TYPE_UINT8:
      return at(uint8_t{});
    case GGUF_TYPE_INT8:
      return at(int8_t{});
    case GGUF_TYPE_UINT16:
      return at(uint16_t{});
    case GGUF_TYPE_INT16:
      return at(int16_t{});
    case GGUF_TYPE_UINT32:
      return at(uint32_t{});
    case GGUF_TYPE_INT32:
      return at(int32_t{});
    case GGUF_TYPE_UINT64:
      return at(uint64_t{});
    case GGUF_TYPE_INT64:
      return at(int64_t{});
    case GGUF_TYPE_FLOAT32:
      return at(float{});
    case GGUF_TYPE_FLOAT64:
      return at(double{});
    case GGUF_TYPE_BOOL:
      return static_cast<const int8_t*>(data)[i] != 0;
    default:
      return nullptr;
  }
}

Json ValueAt(const gguf_context* context, int64_t key) {
  const gguf_type type = gguf_get_kv_type(context, key);
  if (type == GGUF_TYPE_STRING) return gguf_get_val_str(context, key);
  if (type != GGUF_TYPE_ARRAY) return NumberAt(type, gguf_get_val_data(context, key), 0);
  const gguf_type element = gguf_get_arr_type(context, key);
  Json array = Json::array();
  auto& elements = array.get_ref<Json::array_t&>();
  elements.reserve(gguf_get_arr_n(context, key));
  for (size_t i = 0; i < gguf_get_arr_n(context, key); ++i) {
    elements.push_back(element == GGUF_TYPE_STRING ? Json(gguf_get_arr_str(context, key, i))
                                                   : NumberAt(element, gguf_get_arr_data(context, key), i));
  }
  return array;
}

// The size of a tensor in bytes; -1 if it overflows.
int64_t BytesOf(ggml_type type, const int64_t* sizes) {
  int64_t bytes = static_cast<int64_t>(ggml_type_size(type));
  for (int i = 0; i < GGML_MAX_DIMS; ++i) {
    const int64_t size = i == 0 ? sizes[0] / ggml_blck_size(type) : sizes[i];
    if (__builtin_mul_overflow(bytes, size, &bytes)) return -1;
  }
  return bytes;
}

// ggml has the innermost dimension first, and ones after the outermost.
std::vector<int64_t> ShapeOf(const int64_t* sizes) {
  int dimensions = GGML_MAX_DIMS;
  while (dimensions > 1 && sizes[dimensions - 1] == 1) --dimensions;
  std::vector<int64_t> shape(sizes, sizes + dimensions);
  std::reverse(shape.begin(), shape.end());
  return shape;
}

std::string ShardSuffix(int shard, int shards) {
  return absl::StrFormat("-%05d-of-%05d.gguf", shard, shards);
}

}  // namespace

void GgufFile::Free::operator()(gguf_context* context) const { gguf_free(context); }

GgufFile::GgufFile() = default;
GgufFile::GgufFile(GgufFile&&) noexcept = default;
GgufFile& GgufFile::operator=(GgufFile&&) noexcept = default;
GgufFile::~GgufFile() = default;

absl::StatusOr<GgufFile> GgufFile::Open(const std::string& path) {
  if (const auto parts = LayersAndFile(path)) {
    GgufFile file = OUTRIDER_TRY(Open(parts->second));
    file.ReplaceLayers(OUTRIDER_TRY(Open(parts->first)));
    return file;
  }
  GgufFile file;
  OUTRIDER_TRY(file.AddShard(path));
  const auto count = [&file](const char* key) -> int64_t {
    const auto found = file.metadata_.find(key);
    return found != file.metadata_.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
  };
  const int64_t shards = count("split.count");
  if (shards <= 1) return file;
  absl::string_view stem = path;
  if (shards > kMaxShards || !absl::ConsumeSuffix(&stem, ShardSuffix(1, static_cast<int>(shards)))) {
    return Invalid(path, ": split.count: the first of ", shards, " shards, whose name does not end in ",
                   ShardSuffix(1, static_cast<int>(std::min<int64_t>(shards, kMaxShards))));
  }
  for (int shard = 2; shard <= shards; ++shard) {
    OUTRIDER_TRY(file.AddShard(absl::StrCat(stem, ShardSuffix(shard, static_cast<int>(shards)))));
  }
  const int64_t tensors = count("split.tensors.count");
  if (tensors != static_cast<int64_t>(file.tensors_.size())) {
    return Invalid(path, ": split.tensors.count: ", tensors, " tensors, its shards have ",
                   file.tensors_.size());
  }
  return file;
}

void GgufFile::ReplaceLayers(GgufFile layers) {
  absl::erase_if(tensors_, [](const auto& tensor) { return absl::StartsWith(tensor.first, "blk."); });
  for (auto& [name, tensor] : layers.tensors_) {
    tensor.file += shards_.size();
    tensors_.insert_or_assign(name, std::move(tensor));
  }
  std::move(layers.shards_.begin(), layers.shards_.end(), std::back_inserter(shards_));
  metadata_.update(layers.metadata_);
}

absl::Status GgufFile::AddShard(const std::string& path) {
  shards_.push_back(OUTRIDER_TRY(MappedFile::Open(path)));
  const absl::string_view bytes = shards_.back().bytes();
  struct {
    uint32_t magic, version;
    int64_t tensors, keys;
  } header;
  if (bytes.size() < sizeof(header) || !absl::StartsWith(bytes, "GGUF")) {
    return Invalid(path, ": not a GGUF file, or truncated");
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.version != 2 && header.version != 3) {
    return Invalid(path, ": version ", header.version, " of the format, supported: 2 and 3");
  }
  for (const int64_t entries : {header.tensors, header.keys}) {
    if (entries < 0 || entries > kMaxEntries) {
      return Invalid(path, ": ", entries == header.keys ? "keys" : "tensors", ": ", entries,
                     " is not in [0, ", kMaxEntries, "]");
    }
  }
  ggml_log_set(TakeComplaint, nullptr);
  std::string why;
  complaints = &why;
  std::unique_ptr<gguf_context, Free> context(
      gguf_init_from_buffer(bytes.data(), bytes.size(), {.no_alloc = true, .ctx = nullptr}));
  complaints = nullptr;
  if (context == nullptr) return Invalid(path, ": ", why);
  OUTRIDER_TRY(AddTensors(*context));
  if (first_ != nullptr) return absl::OkStatus();
  metadata_ = Json::object();
  for (int64_t key = 0; key < gguf_get_n_kv(context.get()); ++key) {
    const bool is_array = gguf_get_kv_type(context.get(), key) == GGUF_TYPE_ARRAY;
    if (is_array && gguf_get_arr_n(context.get(), key) > kMaxMetadataArray) continue;
    metadata_[gguf_get_key(context.get(), key)] = ValueAt(context.get(), key);
  }
  first_ = std::move(context);
  return absl::OkStatus();
}

absl::Status GgufFile::AddTensors(const gguf_context& context) {
  const size_t file = shards_.size() - 1;
  const absl::string_view bytes = shards_[file].bytes();
  const size_t begin = gguf_get_data_offset(&context);
  for (int64_t i = 0; i < gguf_get_n_tensors(&context); ++i) {
    const std::string name = gguf_get_tensor_name(&context, i);
    const auto damaged = [&](const auto&... parts) {
      return Invalid(shards_[file].path(), ": tensor ", Escaped(name), ": ", parts...);
    };
    const ggml_type type = gguf_get_tensor_type(&context, i);
    const int64_t* const sizes = gguf_get_tensor_ne(&context, i);
    const int64_t size = BytesOf(type, sizes);
    const size_t offset = gguf_get_tensor_offset(&context, i);
    if (size < 0) return damaged("its size in bytes is no 64-bit number");
    if (begin > bytes.size() || offset > bytes.size() - begin ||
        static_cast<size_t>(size) > bytes.size() - begin - offset) {
      return damaged("truncated: ", size, " bytes from byte ", offset, " of the data, which has ",
                     bytes.size() - std::min(begin, bytes.size()));
    }
    const Tensor tensor{static_cast<int>(type), ShapeOf(sizes),
                        bytes.substr(begin + offset, static_cast<size_t>(size)), file};
    if (!tensors_.emplace(name, tensor).second) return damaged("it is in another file, too");
  }
  return absl::OkStatus();
}

Json GgufFile::Value(absl::string_view key) const {
  if (const auto known = metadata_.find(key); known != metadata_.end()) return *known;
  const int64_t found = gguf_find_key(first_.get(), std::string(key).c_str());
  return found < 0 ? Json() : ValueAt(first_.get(), found);
}

int64_t GgufFile::FindString(absl::string_view key, absl::string_view text) const {
  const gguf_context* const context = first_.get();
  const int64_t found = gguf_find_key(context, std::string(key).c_str());
  if (found < 0 || gguf_get_kv_type(context, found) != GGUF_TYPE_ARRAY ||
      gguf_get_arr_type(context, found) != GGUF_TYPE_STRING) {
    return -1;
  }
  for (size_t i = 0; i < gguf_get_arr_n(context, found); ++i) {
    if (text == gguf_get_arr_str(context, found, i)) return static_cast<int64_t>(i);
  }
  return -1;
}

std::string GgufFile::TypeName(int type) { return ggml_type_name(static_cast<ggml_type>(type)); }

bool GgufFile::IsPacked(int type) { return ggml_blck_size(static_cast<ggml_type>(type)) > 1; }

bool GgufFile::CanBeFloat(int type) {
  return type == kFloat32 || ggml_get_type_traits(static_cast<ggml_type>(type))->to_float != nullptr;
}

void GgufFile::ToFloat(int type, const char* data, int64_t count, float* to) {
  if (type == kFloat32) {
    std::memcpy(to, data, static_cast<size_t>(count) * sizeof(float));
  } else {
    ggml_get_type_traits(static_cast<ggml_type>(type))->to_float(data, to, count);
  }
}

const GgufFile::Tensor* GgufFile::Find(absl::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

uint64_t GgufFile::Hash() const {
  return HashTensors(tensors_, [](const Tensor& tensor) { return TypeName(tensor.type); });
}

}  // namespace outrider
