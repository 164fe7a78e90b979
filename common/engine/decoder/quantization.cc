#include "common/engine/decoder/model_config.h"

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/engine/decoder/blocks.h"
#include "common/engine/decoder/field_reader.h"
#include "common/text/json.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

template <class T>
bool Contains(std::initializer_list<T> list, const T& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

// The string in a field, in lower case; fails if it is not supported.
std::string OneOf(FieldReader& fields, const char* name, const char* otherwise,
                  std::initializer_list<std::string> supported) {
  std::string value = absl::AsciiStrToLower(fields.String(name, otherwise));
  if (!Contains(supported, value)) {
    fields.Fail(name, "is \"", value, "\"; supported: ", absl::StrJoin(supported, ", "));
  }
  return value;
}

int Bits(FieldReader& fields, const char* name, std::initializer_list<int> supported) {
  const int bits = fields.Int(name, 1);
  if (!Contains(supported, bits)) {
    fields.Fail(name, "is ", bits, "; supported: ", absl::StrJoin(supported, ", "));
  }
  return bits;
}

// The number of columns that share a scale; 0 for all columns, which the file writes as -1.
int GroupSize(FieldReader& fields) {
  const int size = fields.Int("group_size", -1);
  if (size == 0) fields.Fail("group_size", "is 0");
  return std::max(size, 0);
}

// Fails if the field holds anything.
void RequireEmpty(FieldReader& fields, const char* name, const char* why) {
  if (fields.Has(name) && !fields.At(name).empty()) fields.Fail(name, "is set: ", why);
}

// --- compressed-tensors ---

CompressedTensors ReadWeights(FieldReader& weights, const std::string& format) {
  CompressedTensors read;
  read.packed = format == "pack-quantized";
  const std::string type = format == "float-quantized"   ? OneOf(weights, "type", "int", {"float"})
                           : format == "naive-quantized" ? OneOf(weights, "type", "int", {"int", "float"})
                                                         : OneOf(weights, "type", "int", {"int"});
  read.floats = type == "float";
  read.bits = read.packed ? Bits(weights, "num_bits", {4, 8}) : Bits(weights, "num_bits", {8});
  const char* const otherwise = weights.Has("group_size") ? "group" : "tensor";
  const std::string strategy = read.packed
                                   ? OneOf(weights, "strategy", otherwise, {"channel", "group"})
                                   : OneOf(weights, "strategy", otherwise, {"tensor", "channel", "group"});
  read.one_scale = strategy == "tensor";
  if (strategy == "group") read.group_size = GroupSize(weights);
  read.zero_points = !weights.Bool("symmetric", true);
  if (read.zero_points && read.floats) weights.Fail("symmetric", "is false, and type is \"float\"");
  RefuseTrue(weights, "dynamic", "weights are quantised once");
  const Json order = weights.Has("actorder") ? weights.At("actorder") : Json(false);
  if (order != false && order != "weight" && order != "static") {
    weights.Fail("actorder", "is ", DumpJson(order), "; supported: \"weight\"");
  }
  return read;
}

CompressedTensors ReadCompressedTensors(FieldReader& fields) {
  const std::string format =
      OneOf(fields, "format", "", {"float-quantized", "int-quantized", "naive-quantized", "pack-quantized"});
  RequireEmpty(fields, "kv_cache_scheme", "a quantised KV cache is not supported");
  RequireEmpty(fields, "transform_config", "transforms of activations are not supported");
  if (fields.Has("sparsity_config") && !fields.At("sparsity_config").empty()) {
    FieldReader sparsity = fields.Nested("sparsity_config");
    OneOf(sparsity, "format", "", {"dense"});
  }
  CompressedTensors read;
  if (!fields.Has("config_groups") || fields.At("config_groups").empty()) {
    return fields.Fail("config_groups", "is missing or empty"), read;
  }
  FieldReader groups = fields.Nested("config_groups");
  std::string first;
  for (const auto& [name, value] : fields.At("config_groups").items()) {
    if (!fields.status().ok()) break;
    FieldReader group = groups.Nested(name.c_str());
    OneOf(group, "format", format.c_str(), {format});
    if (!group.Has("weights")) group.Fail("weights", "is missing");
    if (!fields.status().ok()) break;
    FieldReader weights = group.Nested("weights");
    const CompressedTensors found = ReadWeights(weights, format);
    if (first.empty()) {
      first = name;
      read = found;
    } else if (found != read) {
      group.Fail("weights", "are not as those of ", first, ", which is not supported");
    }
  }
  return read;
}

// --- GPTQ and AWQ ---

Gptq ReadGptq(FieldReader& fields) {
  Gptq read;
  read.bits = Bits(fields, "bits", {4, 8});
  read.group_size = GroupSize(fields);
  read.ordered = fields.Bool("desc_act", false);
  const char* const format_name = fields.Has("checkpoint_format") ? "checkpoint_format" : "format";
  read.less_one = OneOf(fields, format_name, "gptq", {"gptq", "gptq_v2"}) == "gptq";
  OneOf(fields, "pack_dtype", "int32", {"int32"});
  RefuseTrue(fields, "is_marlin_format", "this layout is not supported");
  RequireEmpty(fields, "dynamic", "modules that differ are not supported");
  return read;
}

Awq ReadAwq(FieldReader& fields) {
  Awq read;
  Bits(fields, "bits", {4});
  read.group_size = GroupSize(fields);
  OneOf(fields, fields.Has("version") ? "version" : "format", "gemm", {"gemm"});
  if (fields.String("backend", "") == "llm-awq") fields.Fail("backend", "is \"llm-awq\"; supported: autoawq");
  if (!fields.Bool("zero_point", true)) fields.Fail("zero_point", "is false, which is not supported");
  return read;
}

Quantization ReadMethod(FieldReader& fields) {
  const std::string method = fields.String("quant_method", "");
  if (method == "compressed-tensors") return ReadCompressedTensors(fields);
  if (method == "gptq") return ReadGptq(fields);
  if (method == "awq") return ReadAwq(fields);
  fields.Fail("quant_method", method.empty() ? "is missing" : absl::StrCat("is \"", method, "\""),
              "; supported: compressed-tensors, gptq, awq");
  return {};
}

std::string Groups(int size) { return size == 0 ? "a scale for each row" : absl::StrCat("groups of ", size); }

struct Describer {
  std::string operator()(const CompressedTensors& q) const {
    return absl::StrCat("compressed-tensors, ", q.floats ? "fp" : "int", q.bits, ", ",
                        q.one_scale ? "a scale for each tensor" : Groups(q.group_size));
  }
  std::string operator()(const Gptq& q) const {
    return absl::StrCat("gptq, int", q.bits, ", ", Groups(q.group_size),
                        q.ordered ? " in order of activation" : "");
  }
  std::string operator()(const Awq& q) const { return absl::StrCat("awq, int4, ", Groups(q.group_size)); }
};

}  // namespace

std::optional<Quantization> ReadQuantization(FieldReader& config) {
  if (!config.Has("quantization_config")) return std::nullopt;
  FieldReader fields = config.Nested("quantization_config");
  return ReadMethod(fields);
}

bool MayLieInBlocks(const Quantization& quantization) {
  const auto* const compressed = std::get_if<CompressedTensors>(&quantization);
  const int group = std::visit([](const auto& format) { return format.group_size; }, quantization);
  return (compressed == nullptr || !compressed->floats) && group % kBlock == 0;
}

std::string QuantizationInWords(const Quantization& quantization) {
  return std::visit(Describer(), quantization);
}

}  // namespace outrider
