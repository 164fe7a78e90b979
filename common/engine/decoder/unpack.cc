#include "common/engine/decoder/unpacked_tensors.h"

#include <algorithm>
#include <array>

namespace outrider {
namespace {

constexpr int kAwqLevels = 8;  // in a word
constexpr int kAwqRowOf[kAwqLevels] = {0, 2, 4, 6, 1, 3, 5, 7};

template <int kBits>
float LevelAt(uint32_t word, int64_t i) {
  return static_cast<float>((word >> (static_cast<int>(i) * kBits)) & ((1u << kBits) - 1));
}

// Writes the first `count` levels of a word. Most words are full, and their loop has a constant length.
template <int kBits>
void WriteLevels(uint32_t word, int64_t count, float* to) {
  constexpr int64_t kInWord = 32 / kBits;
  if (count >= kInWord) {
    for (int64_t i = 0; i < kInWord; ++i) to[i] = LevelAt<kBits>(word, i);
  } else {
    for (int64_t i = 0; i < count; ++i) to[i] = LevelAt<kBits>(word, i);
  }
}

template <int kBits>
void AlongRows(const uint32_t* words, int64_t rows, int64_t columns, float* to) {
  for (int64_t row = 0; row < rows; ++row, to += columns) {
    for (int64_t first = 0; first < columns; first += 32 / kBits) {
      WriteLevels<kBits>(*words++, columns - first, to + first);
    }
  }
}

template <int kBits>
void AlongColumns(const uint32_t* words, int64_t rows, int64_t columns, float* to) {
  // Reads this many rows at a time, so that the words read together fill a cache line.
  constexpr int64_t kRows = 16;
  for (int64_t top = 0; top < rows; top += kRows) {
    const uint32_t* line = words;
    for (int64_t first = 0; first < columns; first += 32 / kBits, line += rows) {
      for (int64_t row = top; row < std::min(top + kRows, rows); ++row) {
        WriteLevels<kBits>(line[row], columns - first, to + row * columns + first);
      }
    }
  }
}

}  // namespace

void LevelsOfInt8(absl::string_view bytes, float* to) {
  for (const char byte : bytes) *to++ = static_cast<float>(static_cast<int8_t>(byte));
}

void LevelsOfFloat8(absl::string_view bytes, float* to) {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> all;
    for (size_t i = 0; i < all.size(); ++i) all[i] = FromFloat8(static_cast<uint8_t>(i));
    return all;
  }();
  for (const char byte : bytes) *to++ = values[static_cast<uint8_t>(byte)];
}

void LevelsAlongRows(const uint32_t* words, int64_t rows, int64_t columns, int bits, float* to) {
  return bits == 4 ? AlongRows<4>(words, rows, columns, to) : AlongRows<8>(words, rows, columns, to);
}

void LevelsAlongColumns(const uint32_t* words, int64_t rows, int64_t columns, int bits, float* to) {
  return bits == 4 ? AlongColumns<4>(words, rows, columns, to) : AlongColumns<8>(words, rows, columns, to);
}

void LevelsOfAwq(const uint32_t* words, int64_t rows, int64_t columns, float* to) {
  // Works on a few words of a few columns at a time, so that neither reads nor writes are spread too far.
  constexpr int64_t kWords = 4, kColumns = 16;
  const int64_t line_words = rows / kAwqLevels;
  for (int64_t begin = 0; begin < line_words; begin += kWords) {
    for (int64_t first = 0; first < columns; first += kColumns) {
      const int64_t count = std::min(kColumns, columns - first);
      for (int64_t word = begin; word < std::min(begin + kWords, line_words); ++word) {
        const uint32_t* const from = words + first * line_words + word;
        for (int64_t i = 0; i < kAwqLevels; ++i) {
          float* const row = to + (word * kAwqLevels + kAwqRowOf[i]) * columns + first;
          for (int64_t c = 0; c < count; ++c) row[c] = LevelAt<4>(from[c * line_words], i);
        }
      }
    }
  }
}

std::vector<float> Transposed(const std::vector<float>& matrix, int64_t rows, int64_t columns) {
  if (matrix.empty()) return {};
  std::vector<float> transposed(matrix.size());
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      transposed[static_cast<size_t>(column * rows + row)] =
          matrix[static_cast<size_t>(row * columns + column)];
    }
  }
  return transposed;
}

void ScaleLevels(const Scaling& scaling, int64_t rows, int64_t columns, float* levels) {
  const std::vector<int32_t>& group_of = scaling.group_of;
  const float* scales = scaling.scales.data();
  const float* zero_points = scaling.zero_points.empty() ? nullptr : scaling.zero_points.data();
  std::vector<size_t> ends;  // of runs of columns that share a group
  for (size_t i = 1; i <= group_of.size(); ++i) {
    if (i == group_of.size() || group_of[i] != group_of[i - 1]) ends.push_back(i);
  }
  for (int64_t row = 0; row < rows; ++row, levels += columns, scales += scaling.groups) {
    size_t column = 0;
    for (const size_t end : ends) {
      const int32_t group = group_of[column];
      const float zero_point = zero_points == nullptr ? 0.0f : zero_points[row * scaling.groups + group];
      for (; column < end; ++column) levels[column] = (levels[column] - zero_point) * scales[group];
    }
  }
}

}  // namespace outrider
