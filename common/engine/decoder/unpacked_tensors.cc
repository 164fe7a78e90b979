#include "common/engine/decoder/unpacked_tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace outrider {
namespace {

using Shape = std::vector<int64_t>;

int64_t Ceil(int64_t count, int64_t size) { return (count + size - 1) / size; }

// Unpacks the weights [rows, columns] of one module. Keeps the first error.
class Unpacker {
 public:
  Unpacker(const SafeTensors& stored, absl::string_view module, int64_t rows, int64_t columns)
      : stored_(stored), module_(module), rows_(rows), columns_(columns) {}

  bool IsPacked(const CompressedTensors& format) const {
    const SafeTensors::Stored* const weight = stored_.Find(Name("weight"));
    return Has("weight_scale") || Has("weight_packed") ||
           (weight != nullptr && weight->type == LevelType(format));
  }
  bool IsPacked(const Gptq&) const { return Has("qweight") || Has("scales"); }
  bool IsPacked(const Awq&) const { return Has("qweight") || Has("scales"); }

  // Finds the tensor that holds the levels.
  template <class Format>
  absl::Status Check(const Format& format) {
    StoredLevels(format);
    return status_;
  }

  template <class Format>
  absl::StatusOr<TensorView> Unpack(const Format& format) {
    ReadLevels(format);
    ReadScaling(format);
    if (!status_.ok()) return status_;
    ScaleLevels(scaling_, rows_, columns_, levels_.get());
    const char* const data = reinterpret_cast<const char*>(levels_.get());
    return TensorView{ElementType::kFloat32, {rows_, columns_}, data, std::move(levels_)};
  }

  template <class Format>
  std::optional<BlockFormat> FormatOfBlocks(const Format& format) {
    const Levels levels = LevelsOf(format);
    if (!levels.integers || columns_ % kBlock != 0 || !Check(format).ok()) return std::nullopt;
    ReadScaling(format);
    if (!status_.ok()) return std::nullopt;
    for (int64_t column = 0; column < columns_; ++column) {
      const auto group = [&](int64_t of) { return scaling_.group_of[static_cast<size_t>(of)]; };
      if (group(column) != group(column / kBlock * kBlock)) return std::nullopt;
    }
    BlockFormat blocks{.bits = levels.bits};
    for (size_t i = 0; i < scaling_.scales.size(); ++i) {
      blocks.wide |= !IsFloat16(scaling_.scales[i]) || !IsFloat16(MinimumOf(scaling_, i, levels.zero));
    }
    return blocks;
  }

  template <class Format>
  absl::StatusOr<BlockReader> MakeBlockReader(const Format& format) {
    ReadLevels(format);
    ReadScaling(format);
    if (!status_.ok()) return status_;
    return [levels = levels_, scaling = std::move(scaling_), zero = LevelsOf(format).zero,
            columns = columns_](int64_t row, int64_t block, Block& to) {
      const auto group = row * scaling.groups + scaling.group_of[static_cast<size_t>(block * kBlock)];
      to.scale = scaling.scales[static_cast<size_t>(group)];
      to.minimum = MinimumOf(scaling, static_cast<size_t>(group), zero);
      for (int i = 0; i < kBlock; ++i) {
        to.levels[i] = static_cast<int8_t>(levels[row * columns + block * kBlock + i] - zero);
      }
    };
  }

 private:
  // How the levels of a format become those of blocks.
  struct Levels {
    bool integers = true;
    int bits = 4;
    float zero = 0;  // subtracted from each level, which makes levels of 8 bits signed
  };
  static Levels LevelsOf(const CompressedTensors& format) {
    return {!format.floats, format.bits, format.packed && format.bits == 8 ? 128.0f : 0.0f};
  }
  static Levels LevelsOf(const Gptq& format) { return {true, format.bits, format.bits == 8 ? 128.0f : 0.0f}; }
  static Levels LevelsOf(const Awq&) { return {}; }

  static float MinimumOf(const Scaling& scaling, size_t group, float zero) {
    const float zero_point = scaling.zero_points.empty() ? 0 : scaling.zero_points[group];
    return scaling.scales[group] * (zero - zero_point);
  }
  static bool IsFloat16(float value) { return FromFloat16(ToFloat16(value)) == value; }

  void ReadLevels(const CompressedTensors& format) {
    const absl::string_view stored = StoredLevels(format);
    if (format.packed) {
      MakeLevels([&](float* to) { LevelsAlongRows(WordsOf(stored), rows_, columns_, format.bits, to); });
    } else {
      const auto is_nan = [](char float8) { return (float8 & 0x7f) == 0x7f; };
      if (format.floats && std::any_of(stored.begin(), stored.end(), is_nan)) Refuse("weight", "holds NaN");
      MakeLevels([&](float* to) { format.floats ? LevelsOfFloat8(stored, to) : LevelsOfInt8(stored, to); });
    }
  }
  void ReadLevels(const Gptq& format) {
    const absl::string_view stored = StoredLevels(format);
    MakeLevels([&](float* to) { LevelsAlongColumns(WordsOf(stored), rows_, columns_, format.bits, to); });
  }
  void ReadLevels(const Awq& format) {
    const absl::string_view stored = StoredLevels(format);
    MakeLevels([&](float* to) { LevelsOfAwq(WordsOf(stored), rows_, columns_, to); });
  }

  void ReadScaling(const CompressedTensors& format) {
    MakeGroups(format.group_size, "weight_scale");
    scaling_.scales = ForEachRow(format, Floats("weight_scale", ShapeOf(format, "weight_scale")));
    if (format.zero_points) {
      scaling_.zero_points = format.packed ? PackedZeroPoints(format) : ZeroPoints(format);
    } else if (format.packed) {
      // Packed levels are unsigned, so symmetric ones have a zero point in the middle.
      scaling_.zero_points.assign(scaling_.scales.size(), static_cast<float>(1 << (format.bits - 1)));
    }
  }
  void ReadScaling(const Gptq& format) {
    MakeGroups(format.group_size, {});
    if (format.ordered || Has("g_idx")) ReadOrder();
    const int64_t groups = scaling_.groups;
    scaling_.scales = Transposed(Floats("scales", {groups, rows_}), groups, rows_);
    const int64_t zero_words = rows_ * format.bits / 32;
    const uint32_t* const stored_zeros = Words("qzeros", {groups, zero_words});
    if (!status_.ok()) return;
    std::vector<uint32_t> zeros(stored_zeros, stored_zeros + groups * zero_words);
    if (format.less_one) {
      // Add the 1 to whole words, as it was subtracted: a zero point of 0 borrows from its neighbour.
      for (uint32_t& word : zeros) word += format.bits == 4 ? 0x11111111u : 0x01010101u;
    }
    std::vector<float> zero_points(static_cast<size_t>(groups * rows_));
    LevelsAlongRows(zeros.data(), groups, rows_, format.bits, zero_points.data());
    scaling_.zero_points = Transposed(zero_points, groups, rows_);
  }
  void ReadScaling(const Awq& format) {
    MakeGroups(format.group_size, "qweight");
    const int64_t groups = scaling_.groups;
    scaling_.scales = Transposed(Floats("scales", {groups, rows_}), groups, rows_);
    const uint32_t* const zeros = Words("qzeros", {groups, rows_ / 8});
    if (!status_.ok()) return;
    scaling_.zero_points.resize(static_cast<size_t>(groups * rows_));
    LevelsOfAwq(zeros, rows_, groups, scaling_.zero_points.data());
  }

  // Returns the bytes of the tensor that holds the levels; empty after an error.
  absl::string_view StoredLevels(const CompressedTensors& format) {
    if (!format.packed) return Bytes("weight", LevelType(format), {rows_, columns_});
    CheckShape();
    return Bytes("weight_packed", "I32", {rows_, Ceil(columns_ * format.bits, 32)});
  }
  absl::string_view StoredLevels(const Gptq& format) {
    const int64_t in_word = 32 / format.bits;
    RequireWholeWords(columns_, in_word, "columns");
    RequireWholeWords(rows_, in_word, "rows");
    return Bytes("qweight", "I32", {columns_ / in_word, rows_});
  }
  absl::string_view StoredLevels(const Awq&) {
    RequireWholeWords(rows_, 8, "rows");
    return Bytes("qweight", "I32", {columns_, rows_ / 8});
  }

  static absl::string_view LevelType(const CompressedTensors& format) {
    return format.floats ? "F8_E4M3" : "I8";
  }

  std::string Name(absl::string_view suffix) const { return absl::StrCat(module_, ".", suffix); }
  bool Has(absl::string_view suffix) const { return stored_.Find(Name(suffix)) != nullptr; }

  template <typename... Parts>
  void Refuse(absl::string_view suffix, const Parts&... why) {
    if (status_.ok()) status_ = stored_.Refuse(Name(suffix), absl::StrCat(why...));
  }

  // The data of a tensor of this module; empty after an error.
  absl::string_view Bytes(absl::string_view suffix, absl::string_view type, const Shape& shape) {
    if (!status_.ok()) return {};
    const absl::StatusOr<absl::string_view> bytes = stored_.GetBytes(Name(suffix), type, shape);
    status_ = bytes.status();
    return bytes.value_or(absl::string_view());
  }
  static const uint32_t* WordsOf(absl::string_view bytes) {
    return reinterpret_cast<const uint32_t*>(bytes.data());
  }
  // Null after an error.
  const uint32_t* Words(absl::string_view suffix, const Shape& shape) {
    return WordsOf(Bytes(suffix, "I32", shape));
  }
  // Empty after an error.
  std::vector<float> Floats(absl::string_view suffix, const Shape& shape) {
    const TensorView view = stored_.Get(Name(suffix), shape, status_);
    if (!status_.ok()) return {};
    std::vector<float> values = AllElements(view);
    for (const float value : values) {
      if (!std::isfinite(value)) Refuse(suffix, "holds ", value, ", and a scale is finite");
    }
    return values;
  }

  void RequireWholeWords(int64_t count, int64_t in_word, const char* what) {
    if (count % in_word != 0) Refuse("qweight", "its ", count, " ", what, " do not fill words of ", in_word);
  }

  // compressed-tensors stores the shape that its words were packed from.
  void CheckShape() {
    const absl::string_view bytes = Bytes("weight_shape", "I64", {2});
    if (!status_.ok()) return;
    int64_t shape[2];
    std::memcpy(shape, bytes.data(), sizeof(shape));
    if (shape[0] != rows_ || shape[1] != columns_) {
      Refuse("weight_shape", "[", shape[0], ", ", shape[1], "], expected [", rows_, ", ", columns_, "]");
    }
  }

  // Lets `write` write the levels, unless there was an error.
  void MakeLevels(absl::FunctionRef<void(float*)> write) {
    if (!status_.ok()) return;
    const size_t size = static_cast<size_t>(rows_) * static_cast<size_t>(columns_);
    levels_.reset(new (std::nothrow) float[size]);
    if (levels_ != nullptr) return write(levels_.get());
    status_ = absl::ResourceExhaustedError(
        absl::StrCat("cannot allocate ", size * sizeof(float), " bytes to unpack ", module_));
  }

  // Makes groups of `size` columns each, in order; 0: one group. Unless `suffix` is empty, the groups must
  // divide the columns; the error names the tensor with that suffix.
  void MakeGroups(int64_t size, absl::string_view suffix) {
    if (!status_.ok()) return;
    if (size == 0) size = columns_;
    if (!suffix.empty() && columns_ % size != 0) {
      return Refuse(suffix, "groups of ", size, " do not divide ", columns_, " columns");
    }
    scaling_.groups = Ceil(columns_, size);
    for (int64_t column = 0; column < columns_; ++column) {
      scaling_.group_of.push_back(static_cast<int32_t>(column / size));
    }
  }

  // Reads the group of each column from the checkpoint.
  void ReadOrder() {
    const uint32_t* const order = Words("g_idx", {columns_});
    for (int64_t column = 0; order != nullptr && column < columns_; ++column) {
      const int32_t group = static_cast<int32_t>(order[column]);
      if (group < 0 || group >= scaling_.groups) {
        Refuse("g_idx", "names group ", group, " of ", scaling_.groups);
        return;
      }
      scaling_.group_of[static_cast<size_t>(column)] = group;
    }
  }

  // Versions of compressed-tensors store one number per row, or one for all rows, in different shapes.
  Shape ShapeOf(const CompressedTensors& format, absl::string_view suffix) const {
    const Shape usual = format.one_scale ? Shape{1} : Shape{rows_, scaling_.groups};
    const Shape bare = format.one_scale ? Shape{} : Shape{rows_};
    const SafeTensors::Stored* const found = stored_.Find(Name(suffix));
    return found != nullptr && scaling_.groups == 1 && found->shape == bare ? bare : usual;
  }

  std::vector<float> ForEachRow(const CompressedTensors& format, std::vector<float> values) const {
    if (format.one_scale && !values.empty()) values.resize(static_cast<size_t>(rows_), values[0]);
    return values;
  }

  std::vector<float> ZeroPoints(const CompressedTensors& format) {
    const absl::string_view bytes = Bytes("weight_zero_point", "I8", ShapeOf(format, "weight_zero_point"));
    std::vector<float> zero_points(bytes.size());
    LevelsOfInt8(bytes, zero_points.data());
    return ForEachRow(format, std::move(zero_points));
  }

  std::vector<float> PackedZeroPoints(const CompressedTensors& format) {
    const int64_t groups = scaling_.groups;
    const uint32_t* const words = Words("weight_zero_point", {Ceil(rows_ * format.bits, 32), groups});
    if (words == nullptr) return {};
    std::vector<float> zero_points(static_cast<size_t>(groups * rows_));
    LevelsAlongColumns(words, groups, rows_, format.bits, zero_points.data());
    return Transposed(zero_points, groups, rows_);
  }

  const SafeTensors& stored_;
  const std::string module_;
  const int64_t rows_, columns_;
  absl::Status status_;
  std::shared_ptr<float[]> levels_;
  Scaling scaling_;
};

// Returns what `packed` gives for the format of a packed matrix, else what `plain` gives.
template <class Packed, class Plain>
auto ForFormat(const SafeTensors& stored, const Quantization& quantization, absl::string_view name,
               absl::Span<const int64_t> shape, Packed packed, Plain plain) {
  absl::string_view module = name;
  if (shape.size() != 2 || !absl::ConsumeSuffix(&module, ".weight")) return plain();
  Unpacker unpacker(stored, module, shape[0], shape[1]);
  return std::visit(
      [&](const auto& format) { return unpacker.IsPacked(format) ? packed(unpacker, format) : plain(); },
      quantization);
}

}  // namespace

absl::StatusOr<TensorView> UnpackedTensors::Get(absl::string_view name,
                                                absl::Span<const int64_t> shape) const {
  return ForFormat(
      stored_, quantization_, name, shape,
      [](Unpacker& unpacker, const auto& format) { return unpacker.Unpack(format); },
      [&] { return stored_.Get(name, shape); });
}

absl::Status UnpackedTensors::Check(absl::string_view name, absl::Span<const int64_t> shape) const {
  return ForFormat(
      stored_, quantization_, name, shape,
      [](Unpacker& unpacker, const auto& format) { return unpacker.Check(format); },
      [&] { return stored_.Check(name, shape); });
}

std::optional<BlockFormat> UnpackedTensors::BlocksOf(absl::string_view name,
                                                     absl::Span<const int64_t> shape) const {
  return ForFormat(
      stored_, quantization_, name, shape,
      [](Unpacker& unpacker, const auto& format) { return unpacker.FormatOfBlocks(format); },
      []() -> std::optional<BlockFormat> { return std::nullopt; });
}

absl::StatusOr<BlockReader> UnpackedTensors::GetBlocks(absl::string_view name,
                                                       absl::Span<const int64_t> shape) const {
  return ForFormat(
      stored_, quantization_, name, shape,
      [](Unpacker& unpacker, const auto& format) { return unpacker.MakeBlockReader(format); },
      [&] { return TensorSource::GetBlocks(name, shape); });
}

}  // namespace outrider
