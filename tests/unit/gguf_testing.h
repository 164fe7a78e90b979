// Writes GGUF files for tests (gguf.md of https://github.com/ggml-org/ggml), right or damaged.
#pragma once

#include <bit>
#include <concepts>
#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace outrider {

// The contents of a file, in order. A value has the type that it has in C++: uint32_t{1} and int64_t{1}
// differ in the file.
class GgufContent {
 public:
  // Sets a key to a bool, a number, a text, or a vector of these. Replaces a value that is present.
  template <class T>
  GgufContent& Set(std::string_view key, const T& value) {
    std::string bytes;
    if constexpr (kIsList<T>) {
      Append(uint32_t{9}, &bytes);
      Append(TypeOf<typename T::value_type>(), &bytes);
      Append(uint64_t{value.size()}, &bytes);
      for (const auto& element : value) Append(element, &bytes);
    } else {
      Append(TypeOf<T>(), &bytes);
      Append(value, &bytes);
    }
    return SetBytes(key, std::move(bytes));
  }

  // The same with the bytes of a value in the file, including its type, for values that are not vectors:
  // lists of lists, and damage.
  GgufContent& SetBytes(std::string_view key, std::string bytes) {
    for (auto& [name, value] : values_) {
      if (name != key) continue;
      value = std::move(bytes);
      return *this;
    }
    values_.emplace_back(key, std::move(bytes));
    return *this;
  }

  GgufContent& Erase(std::string_view key) {
    std::erase_if(values_, [&](const auto& value) { return value.first == key; });
    return *this;
  }

  // Adds a tensor of a ggml_type. As in Hugging Face's files, the innermost dimension of `shape` is the last.
  GgufContent& AddTensor(std::string_view name, uint32_t type, std::vector<int64_t> shape, std::string data) {
    tensors_.push_back({std::string(name), type, std::move(shape), std::move(data)});
    return *this;
  }
  // The same with floats (GGML_TYPE_F32).
  GgufContent& AddTensor(std::string_view name, std::vector<int64_t> shape, const std::vector<float>& data) {
    return AddTensor(name, 0, std::move(shape),
                     std::string(reinterpret_cast<const char*>(data.data()), data.size() * sizeof(float)));
  }

  std::string Bytes() const {
    std::string bytes = "GGUF";
    Append(uint32_t{3}, &bytes);
    Append(uint64_t{tensors_.size()}, &bytes);
    Append(uint64_t{values_.size()}, &bytes);
    for (const auto& [key, value] : values_) {
      Append(key, &bytes);
      bytes += value;
    }
    uint64_t offset = 0;
    for (const Tensor& tensor : tensors_) {
      Append(tensor.name, &bytes);
      Append(static_cast<uint32_t>(tensor.shape.size()), &bytes);
      for (auto size = tensor.shape.rbegin(); size != tensor.shape.rend(); ++size) Append(*size, &bytes);
      Append(tensor.type, &bytes);
      Append(offset, &bytes);
      offset += Padded(tensor.data).size();
    }
    bytes = Padded(std::move(bytes));
    for (const Tensor& tensor : tensors_) bytes += Padded(tensor.data);
    return bytes;
  }

  void WriteTo(const std::string& path) const { std::ofstream(path, std::ios::binary) << Bytes(); }

 private:
  struct Tensor {
    std::string name;
    uint32_t type;
    std::vector<int64_t> shape;
    std::string data;
  };

  template <class T>
  static constexpr bool kIsText = std::convertible_to<T, std::string_view>;
  template <class T>
  static constexpr bool kIsList = !kIsText<T> && !std::is_arithmetic_v<T>;

  template <class T>
  static uint32_t TypeOf() {
    if constexpr (kIsText<T>) return 8;
    if constexpr (std::same_as<T, bool>) return 7;
    if constexpr (std::same_as<T, float>) return 6;
    if constexpr (std::same_as<T, double>) return 12;
    if constexpr (std::integral<T> && sizeof(T) == 8) return std::is_signed_v<T> ? 11 : 10;
    return 2 * static_cast<uint32_t>(std::bit_width(sizeof(T)) - 1) + (std::is_signed_v<T> ? 1 : 0);
  }

  template <class T>
  static void Append(const T& value, std::string* bytes) {
    if constexpr (kIsText<T>) {
      const std::string_view text = value;
      Append(uint64_t{text.size()}, bytes);
      *bytes += text;
    } else {
      static_assert(std::is_arithmetic_v<T> && std::endian::native == std::endian::little);
      bytes->append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
  }

  static std::string Padded(std::string bytes) {
    constexpr size_t kAlignment = 32;
    bytes.resize((bytes.size() + kAlignment - 1) / kAlignment * kAlignment);
    return bytes;
  }

  std::vector<std::pair<std::string, std::string>> values_;
  std::vector<Tensor> tensors_;
};

}  // namespace outrider
