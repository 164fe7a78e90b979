// The kernels for CPUs with AMX. A tile instruction multiplies 16 rows by 16 columns at once, so up to 16
// rows cost about as much as one. Products of float32 weights, and everything that is not a matrix product,
// are the same as in kernels_avx512bf16.cc.
//
// A tile instruction takes 32 k of weights as [k / 2][column][2], the layout of a bfloat16 panel; other
// weights are widened to this layout first. For each element it adds the even k in one chain and the odd k in
// another, and then adds both to the previous sum. This order does not depend on the other rows.
#include "common/engine/cpu/kernels_avx512bf16.inc"
#include "common/engine/cpu/kernels_linear.inc"

namespace outrider {
namespace {

constexpr int kTileRows = 16;
constexpr int kTileK = 32;
constexpr int kTileBytes = 64;  // of a row of a tile
constexpr int kMostRows = 2 * kTileRows;
// How far ahead weights are prefetched, into the second-level cache and into the first.
constexpr int64_t kFarBytes = 32 << 10;
constexpr int64_t kNearBytes = 4 << 10;
static_assert(kPanel == 2 * kLanes && kBlockColumns == kTileK);

// Tiles 0 to 3 hold the sums: two halves of the rows by two halves of a panel's columns. Tiles 4 and 5 hold
// the operands of the halves of the rows, tiles 6 and 7 the weights of the halves of the columns.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// The compiler does not know that tile instructions read memory. This makes it complete earlier writes first.
inline void BeforeTiles() { __asm__ volatile("" ::: "memory"); }

void ConfigureTiles(int upper_rows, int lower_rows) {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    config.row_bytes[tile] = kTileBytes;
    const bool is_lower = tile == 2 || tile == 3 || tile == 5;
    const int rows = is_lower && lower_rows > 0 ? lower_rows : upper_rows;  // no tile may be empty
    config.rows[tile] = static_cast<uint8_t>(tile > 5 ? kTileK / 2 : rows);
  }
  BeforeTiles();
  _tile_loadconfig(&config);
}

void Prefetch(const char* w, int64_t step_bytes) {
  for (int64_t line = 0; line < step_bytes; line += 64) {
    __builtin_prefetch(w + line + kFarBytes, 0, 2);
    __builtin_prefetch(w + line + kNearBytes);
  }
}

// 32 k of a panel's weights, widened to bfloat16.
struct alignas(64) WideWeights {
  IntVec pairs[2][kTileK / 2];  // [half of the columns][k / 2]
};
using Sums = PanelSums<kMostRows>;

// The operands of two halves of some rows, from some k on.
struct Operands {
  const uint16_t* x;
  int64_t stride;  // bytes
  int upper_rows;
  int lower_rows;

  int rows() const { return upper_rows + lower_rows; }
};

void AddTiles(const Operands& operands, const void* weights, int64_t half_bytes, int64_t pair_bytes) {
  BeforeTiles();
  const char* const columns = static_cast<const char*>(weights);
  _tile_loadd(6, columns, pair_bytes);
  _tile_loadd(7, columns + half_bytes, pair_bytes);
  const char* const rows = reinterpret_cast<const char*>(operands.x);
  _tile_loadd(4, rows, operands.stride);
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  if (operands.lower_rows == 0) return;
  _tile_loadd(5, rows + operands.upper_rows * operands.stride, operands.stride);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}

void ZeroTiles() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

void StoreTiles(const Operands& operands, Sums& sums) {
  _tile_stored(0, &sums.rows[0][0], sizeof(sums.rows[0]));
  _tile_stored(1, &sums.rows[0][1], sizeof(sums.rows[0]));
  if (operands.lower_rows == 0) return;
  _tile_stored(2, &sums.rows[operands.upper_rows][0], sizeof(sums.rows[0]));
  _tile_stored(3, &sums.rows[operands.upper_rows][1], sizeof(sums.rows[0]));
}

// Widens `pairs` pairs of k from `from` on. The remaining pairs of `to` become zeros.
template <Storage kStorage>
void Widen(const char* from, int pairs, WideWeights& to) {
  if constexpr (kStorage == Storage::kBlocks4) {
    for (int group = 0; group < 4; ++group) {
      for (int c = 0; c < 2; ++c) {
        const IntVec words = LoadPairs(from + (group * kPanel + c * kLanes) * 4);
#pragma GCC unroll 4
        for (int pair = 0; pair < 4; ++pair) to.pairs[c][4 * group + pair] = WidenLevels(words, pair);
      }
    }
  } else {
    constexpr int kPairBytes = kPanel * (kStorage == Storage::kBFloat16 ? 4 : 2);
    for (int pair = 0; pair < kTileK / 2; ++pair) {
      for (int c = 0; c < 2; ++c) {
        to.pairs[c][pair] =
            pair < pairs ? LoadPairs<kStorage>(from + pair * kPairBytes, c * kLanes) : IntVec{};
      }
    }
  }
}

// The last `k` operands of each row, padded with zeros to kTileK.
struct alignas(64) PaddedOperands {
  uint16_t x[kMostRows][kTileK] = {};

  PaddedOperands(const Operands& operands, int k) {
    const char* from = reinterpret_cast<const char*>(operands.x);
    for (int r = 0; r < operands.rows(); ++r, from += operands.stride) {
      __builtin_memcpy(x[r], from, static_cast<size_t>(k) * sizeof(uint16_t));
    }
  }
};

// The sums of a panel over all k.
template <Storage kStorage>
void MultiplyPanel(const LinearArgs& args, int panel, Operands operands, Sums& sums) {
  constexpr int64_t kPairBytes = kPanel * (kStorage == Storage::kBFloat16 ? 4 : 2);
  constexpr int64_t kStepBytes = kTileK / 2 * kPairBytes;
  constexpr int64_t kHeadBytes = kStorage == Storage::kInt8 ? kScaleBytes : 0;
  const char* const head =
      static_cast<const char*>(args.weights) + panel * (kHeadBytes + args.k / 2 * kPairBytes);
  const char* w = head + kHeadBytes;
  WideWeights wide[2];
  ZeroTiles();
  int k = 0;
  for (; k + kTileK <= args.k; k += kTileK, w += kStepBytes, operands.x += kTileK) {
    Prefetch(w, kStepBytes);
    if constexpr (kStorage == Storage::kBFloat16) {
      AddTiles(operands, w, kTileBytes, kPairBytes);
    } else {
      WideWeights& now = wide[k / kTileK % 2];
      Widen<kStorage>(w, kTileK / 2, now);
      AddTiles(operands, &now, sizeof(now.pairs[0]), kTileBytes);
    }
  }
  if (k < args.k) {
    const PaddedOperands padded(operands, args.k - k);
    Widen<kStorage>(w, (args.k - k) / 2, wide[0]);
    AddTiles({padded.x[0], sizeof(padded.x[0]), operands.upper_rows, operands.lower_rows}, &wide[0],
             sizeof(wide[0].pairs[0]), kTileBytes);
  }
  StoreTiles(operands, sums);
  if constexpr (kStorage == Storage::kInt8) ScaleSums(head, operands.rows(), sums.rows);
}

// The same for weights in blocks. `block_sums` points to the sums of the first row.
template <Storage kStorage>
void MultiplyBlocks(const LinearArgs& args, int panel, Operands operands, const float* block_sums,
                    Sums& sums) {
  const bool is_wide = HasWideScales(args);
  const int scale_bytes = kPanel * (is_wide ? 4 : 2);
  const int64_t blocks = args.k / kTileK;
  const int64_t step_bytes = 2 * scale_bytes + kPanel * kTileK / (kStorage == Storage::kBlocks4 ? 2 : 1);
  const int rows = operands.rows();
  const char* w = static_cast<const char*>(args.weights) + panel * blocks * step_bytes;
  WideWeights wide[2];
  Sums chains[2];
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < kPanelVecs; ++c) sums.rows[r][c] = Vec{};
  }
  // Tiles are loaded from the cache, and a store takes a while to reach it. So each stage works one block
  // behind the stage before it.
  Widen<kStorage>(w + 2 * scale_bytes, kTileK / 2, wide[0]);
  for (int64_t block = 0; block <= blocks; ++block, w += step_bytes, operands.x += kTileK) {
    Prefetch(w, step_bytes);
    if (block + 1 < blocks) {
      Widen<kStorage>(w + step_bytes + 2 * scale_bytes, kTileK / 2, wide[(block + 1) % 2]);
    }
    if (block < blocks) {
      ZeroTiles();
      AddTiles(operands, &wide[block % 2], sizeof(wide[0].pairs[0]), kTileBytes);
      StoreTiles(operands, chains[block % 2]);
    }
    if (block == 0) continue;
    const Sums& done = chains[(block + 1) % 2];
    for (int c = 0; c < kPanelVecs; ++c) {
      const char* const scales = w - step_bytes + c * (scale_bytes / kPanelVecs);
      const Vec scale = LoadScale(scales, is_wide);
      Vec minimum = LoadScale(scales + scale_bytes, is_wide);
      if constexpr (kStorage == Storage::kBlocks4) minimum = Fma(Broadcast(-kLevelOffset), scale, minimum);
      for (int r = 0; r < rows; ++r) {
        const Vec sum = Fma(minimum, Broadcast(block_sums[r * blocks + block - 1]), sums.rows[r][c]);
        sums.rows[r][c] = Fma(scale, done.rows[r][c], sum);
      }
    }
  }
}

// The sums of a panel for the rows from `row` on.
template <Storage kStorage>
void SumPanel(const LinearArgs& args, int panel, int row, int upper_rows, int lower_rows, Sums& sums) {
  const auto* const x = static_cast<const uint16_t*>(args.x) + static_cast<int64_t>(row) * args.k;
  const Operands operands = {x, int64_t{2} * args.k, upper_rows, lower_rows};
  if constexpr (kInBlocks<kStorage>) {
    MultiplyBlocks<kStorage>(args, panel, operands, args.sums + int64_t{row} * (args.k / kTileK), sums);
  } else {
    MultiplyPanel<kStorage>(args, panel, operands, sums);
  }
}

template <Storage kStorage>
void TiledPanels(const LinearArgs& args) {
  int configured_upper = 0, configured_lower = 0;
  PanelByPanel<kStorage, kMostRows>(args, [&](int panel, int row, int rows, Sums& sums) {
    const int upper = rows > kTileRows ? (rows + 1) / 2 : rows, lower = rows - upper;
    if (upper != configured_upper || lower != configured_lower) ConfigureTiles(upper, lower);
    configured_upper = upper;
    configured_lower = lower;
    SumPanel<kStorage>(args, panel, row, upper, lower, sums);
  });
  _tile_release();
}

void TiledLinear(const LinearArgs& args) {
  switch (args.storage) {
    case Storage::kFloat32:
      return LinearPanels<Storage::kFloat32>(args);
    case Storage::kBFloat16:
      return TiledPanels<Storage::kBFloat16>(args);
    case Storage::kInt8:
      return TiledPanels<Storage::kInt8>(args);
    case Storage::kBlocks4:
    case Storage::kWideBlocks4:
      return TiledPanels<Storage::kBlocks4>(args);
    case Storage::kBlocks8:
    case Storage::kWideBlocks8:
      return TiledPanels<Storage::kBlocks8>(args);
  }
}

}  // namespace
}  // namespace outrider

const outrider::Kernels outrider::kernels_internal::kAvx512Amx =
    outrider::KernelsNamed("avx512amx", &outrider::TiledLinear);
