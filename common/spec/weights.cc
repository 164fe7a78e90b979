#include "common/spec/weights.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "common/spec/check.h"
#include "common/spec/team/exact_math.h"
#include "common/spec/team/row_shape.h"
#include "common/spec/team/row_sums.h"
#include "common/spec/team/team_of_one.h"

// One copy of a hot loop per instruction set, chosen when the program starts. The copies give the same bits:
// each operation is correctly rounded, none is fused (-ffp-contract=off), and the order of every sum is
// written out below. The choice runs before the sanitizers are ready, so they get the plain copy only.
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define OUTRIDER_VECTOR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define OUTRIDER_VECTOR_CLONES
#endif

namespace outrider {
namespace {

constexpr size_t kLanes = team::kLanes;

// Four or sixteen numbers side by side. Loads go through memcpy because rows are aligned to their elements
// only. The sums use the narrow form: it fits the registers of every copy, and four of them run
// independently.
using Floats4 = float __attribute__((vector_size(4 * sizeof(float))));
using Ints4 = int32_t __attribute__((vector_size(4 * sizeof(int32_t))));
using Doubles4 = double __attribute__((vector_size(4 * sizeof(double))));
using Floats = float __attribute__((vector_size(kLanes * sizeof(float))));
using Ints = int32_t __attribute__((vector_size(kLanes * sizeof(int32_t))));

// Adds weights[done..n) to the sixteen partial sums in a, b, c and d, then adds the partial sums pairwise.
template <class T>
inline __attribute__((always_inline)) double AddLanes(const Doubles4& a, const Doubles4& b, const Doubles4& c,
                                                      const Doubles4& d, const T* weights, size_t done,
                                                      size_t n) {
  double lanes[kLanes];
  std::memcpy(lanes, &a, sizeof(a));
  std::memcpy(lanes + 4, &b, sizeof(b));
  std::memcpy(lanes + 8, &c, sizeof(c));
  std::memcpy(lanes + 12, &d, sizeof(d));
  for (size_t i = done; i < n; ++i) lanes[i % kLanes] += weights[i];
  for (size_t lane = 0; lane < 8; ++lane) lanes[lane] += lanes[lane + 8];
  for (size_t lane = 0; lane < 4; ++lane) lanes[lane] += lanes[lane + 4];
  return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
}

// Returns the sum of n weights of type T. A Four is a vector of four of them.
template <class Four, class T>
inline __attribute__((always_inline)) double SumOf(const T* weights, size_t n) {
  Doubles4 a = {}, b = {}, c = {}, d = {};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Four w[4];
    std::memcpy(w, weights + i, sizeof(w));
    a += __builtin_convertvector(w[0], Doubles4);
    b += __builtin_convertvector(w[1], Doubles4);
    c += __builtin_convertvector(w[2], Doubles4);
    d += __builtin_convertvector(w[3], Doubles4);
  }
  return AddLanes(a, b, c, d, weights, i, n);
}

OUTRIDER_VECTOR_CLONES double SumBlock(const float* weights, size_t n) { return SumOf<Floats4>(weights, n); }
OUTRIDER_VECTOR_CLONES double SumBlock(const double* weights, size_t n) {
  return SumOf<Doubles4>(weights, n);
}

OUTRIDER_VECTOR_CLONES void MaxAndFinite(const float* values, size_t n, float* max, bool* finite) {
  Floats maxima = {};
  maxima -= std::numeric_limits<float>::infinity();
  Ints special = {};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Floats x;
    std::memcpy(&x, values + i, sizeof(x));
    maxima = x > maxima ? x : maxima;
    Ints bits;
    std::memcpy(&bits, &x, sizeof(bits));
    special |= (bits & 0x7f800000) == 0x7f800000;
  }
  *max = -std::numeric_limits<float>::infinity();
  *finite = true;
  for (size_t lane = 0; lane < kLanes; ++lane) {
    if (maxima[lane] > *max) *max = maxima[lane];
    if (special[lane] != 0) *finite = false;
  }
  for (; i < n; ++i) {
    if (values[i] > *max) *max = values[i];
    if (!std::isfinite(values[i])) *finite = false;
  }
}

OUTRIDER_VECTOR_CLONES bool AnyEqual(const float* values, size_t n, float wanted) {
  int found = 0;
  for (size_t i = 0; i < n; ++i) found |= values[i] == wanted;
  return found != 0;
}

// Returns a mask whose bit i is set if values[i] >= bound, for i < kLanes.
inline __attribute__((always_inline)) uint32_t WhichReach(const float* values, const Floats4& bound) {
  constexpr Ints4 kBits[] = {
      {1, 2, 4, 8}, {16, 32, 64, 128}, {256, 512, 1024, 2048}, {4096, 8192, 16384, 32768}};
  Ints4 bits = {};
  for (size_t part = 0; part < 4; ++part) {
    Floats4 x;
    std::memcpy(&x, values + 4 * part, sizeof(x));
    bits |= (x >= bound) & kBits[part];
  }
  uint64_t halves[2];
  std::memcpy(halves, &bits, sizeof(halves));
  const uint64_t both = halves[0] | halves[1];
  return static_cast<uint32_t>(both | both >> 32);
}

OUTRIDER_VECTOR_CLONES size_t AtLeast(const float* values, size_t n, float bound, TokenId first,
                                      TokenId* found) {
  const Floats4 bounds = {bound, bound, bound, bound};
  size_t count = 0;
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (uint32_t bits = WhichReach(values + i, bounds); bits != 0; bits &= bits - 1) {
      found[count++] = first + static_cast<TokenId>(i) + std::countr_zero(bits);
    }
  }
  for (; i < n; ++i) {
    if (values[i] >= bound) found[count++] = first + static_cast<TokenId>(i);
  }
  return count;
}

// maxima[i] <- max(maxima[i], values[i]).
OUTRIDER_VECTOR_CLONES void RaiseMaxima(const float* values, size_t n, float* maxima) {
  for (size_t i = 0; i < n; ++i) maxima[i] = values[i] > maxima[i] ? values[i] : maxima[i];
}

// Maps the bits of floats to integers that have the order of the floats. The mapping is its own inverse.
inline int32_t OrderOfBits(int32_t bits) { return bits ^ ((bits >> 31) & 0x7fffffff); }
inline int64_t OrderOf(float value) { return OrderOfBits(std::bit_cast<int32_t>(value)); }
inline float InOrder(int64_t order) { return std::bit_cast<float>(OrderOfBits(static_cast<int32_t>(order))); }

// See BoundOfLargest.
OUTRIDER_VECTOR_CLONES ValueAndCount Bisect(const float* values, size_t n, size_t k, size_t slack) {
  // `count` >= k values are at least `low`, and fewer than k are at least `high`.
  int64_t low = OrderOf(-std::numeric_limits<float>::infinity());
  int64_t high = OrderOf(std::numeric_limits<float>::infinity());
  size_t count = n;
  while (count > k + slack && high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    const float bound = InOrder(middle);
    int32_t at_least = 0;
    for (size_t i = 0; i < n; ++i) at_least += values[i] >= bound;
    if (static_cast<size_t>(at_least) >= k) {
      low = middle;
      count = static_cast<size_t>(at_least);
    } else {
      high = middle;
    }
  }
  return {InOrder(low), count};
}

OUTRIDER_VECTOR_CLONES void LogTimes(const float* weights, size_t n, float* products) {
  for (size_t i = 0; i < n; ++i) products[i] = team::TimesLog(weights[i]);
}

OUTRIDER_VECTOR_CLONES void ExpAll(float* values, size_t n, float max, float inverse_temperature) {
  for (size_t i = 0; i < n; ++i) values[i] = team::ExpWeight(values[i], max, inverse_temperature);
}

OUTRIDER_VECTOR_CLONES void ZeroBelow(float* weights, size_t n, float bound) {
  for (size_t i = 0; i < n; ++i) weights[i] = weights[i] < bound ? 0.0f : weights[i];
}

// Adds the sum of the weights that are at least `bound` to *mass, and their number to *count.
OUTRIDER_VECTOR_CLONES void SumAtLeast(const float* weights, size_t n, float bound, double* mass,
                                       int* count) {
  Doubles4 sums[4] = {};
  Ints4 counts = {};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t part = 0; part < 4; ++part) {
      Floats4 w;
      Ints4 bits;
      std::memcpy(&w, weights + i + 4 * part, sizeof(w));
      std::memcpy(&bits, &w, sizeof(bits));
      const Ints4 counted = w >= bound;  // -1 where it holds
      counts -= counted;
      bits &= counted;
      std::memcpy(&w, &bits, sizeof(w));
      sums[part] += __builtin_convertvector(w, Doubles4);
    }
  }
  float rest[kLanes] = {};
  for (size_t k = 0; i + k < n; ++k) {
    const bool counted = weights[i + k] >= bound;
    rest[k] = counted ? weights[i + k] : 0;
    *count += counted;
  }
  *mass += AddLanes(sums[0], sums[1], sums[2], sums[3], rest, 0, kLanes);
  *count += counts[0] + counts[1] + counts[2] + counts[3];
}

OUTRIDER_VECTOR_CLONES void Scale(const float* weights, double scale, double* scaled, size_t n) {
  for (size_t i = 0; i < n; ++i) scaled[i] = scale * weights[i];
}

OUTRIDER_VECTOR_CLONES void Subtract(const float* q, double scale, double* residual, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const double difference = residual[i] - scale * q[i];
    residual[i] = difference > 0 ? difference : 0;
  }
}

OUTRIDER_VECTOR_CLONES void Minimum(const float* p, double scale_p, const float* q, double scale_q,
                                    double* minimum, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const double a = scale_p * p[i];
    const double b = scale_q * q[i];
    minimum[i] = a < b ? a : b;
  }
}

// min(scale_p * p[x], scale_q * q[x]).
struct SmallerRow {
  const float* p;
  double scale_p;
  const float* q;
  double scale_q;
};

double SumOfBlock(const SmallerRow& row, int begin, int end) {
  double minimum[kWeightBlock];
  const size_t size = static_cast<size_t>(end - begin);
  Minimum(row.p + begin, row.scale_p, row.q + begin, row.scale_q, minimum, size);
  return SumBlock(minimum, size);
}

template <class Row>
double Sum(const Row& row, size_t size) {
  team::TeamOfOne team;
  return SumRow(team, row, static_cast<int>(size));
}

template <class Row>
size_t Sample(const Row& row, size_t size, double total, double u) {
  team::TeamOfOne team;
  const int index = SampleIndex(team, row, static_cast<int>(size), total, u);
  OUTRIDER_CHECK(index >= 0);  // else a distribution without mass was sampled
  return static_cast<size_t>(index);
}

}  // namespace

namespace team {

double SumOfBlock(const FloatRow& row, int begin, int end) {
  return SumBlock(row.weights + begin, static_cast<size_t>(end - begin));
}

double SumOfBlock(const DoubleRow& row, int begin, int end) {
  return SumBlock(row.weights + begin, static_cast<size_t>(end - begin));
}

double SumOfBlock(const TimesLogRow& row, int begin, int end) {
  float products[kWeightBlock];
  const size_t size = static_cast<size_t>(end - begin);
  LogTimes(row.weights + begin, size, products);
  return SumBlock(products, size);
}

}  // namespace team

double SumWeights(std::span<const float> weights) {
  return Sum(team::FloatRow{weights.data()}, weights.size());
}
double SumWeights(std::span<const double> weights) {
  return Sum(team::DoubleRow{weights.data()}, weights.size());
}

size_t SampleIndex(std::span<const float> weights, double total, double u) {
  return Sample(team::FloatRow{weights.data()}, weights.size(), total, u);
}
size_t SampleIndex(std::span<const double> weights, double total, double u) {
  return Sample(team::DoubleRow{weights.data()}, weights.size(), total, u);
}

double Entropy(std::span<const float> weights, double total) {
  team::TeamOfOne team;
  return team::RowEntropy(team, weights.data(), static_cast<int>(weights.size()), total);
}

MaxResult FindMax(std::span<const float> values) {
  MaxResult result;
  MaxAndFinite(values.data(), values.size(), &result.value, &result.finite);
  if (!result.finite && !(result.value > -std::numeric_limits<float>::infinity())) return result;
  size_t begin = 0;
  while (begin + kWeightBlock < values.size() &&
         !AnyEqual(values.data() + begin, kWeightBlock, result.value)) {
    begin += kWeightBlock;
  }
  while (begin + 1 < values.size() && values[begin] != result.value) ++begin;
  result.index = static_cast<TokenId>(begin);
  return result;
}

size_t CollectAtLeast(std::span<const float> values, size_t begin, float bound, TokenId* found) {
  return AtLeast(values.data() + begin, std::min(kWeightBlock, values.size() - begin), bound,
                 static_cast<TokenId>(begin), found);
}

ValueAndCount BoundOfLargest(std::span<const float> values, size_t k, size_t slack) {
  OUTRIDER_CHECK(k >= 1 && k <= values.size());
  return Bisect(values.data(), values.size(), k, slack);
}

void FindColumnMaxima(std::span<const float> values, std::span<float> maxima) {
  std::fill(maxima.begin(), maxima.end(), -std::numeric_limits<float>::infinity());
  for (size_t begin = 0; begin < values.size(); begin += maxima.size()) {
    RaiseMaxima(values.data() + begin, std::min(maxima.size(), values.size() - begin), maxima.data());
  }
}

void ExpInPlace(std::span<float> values, float max, float inverse_temperature) {
  ExpAll(values.data(), values.size(), max, inverse_temperature);
}

void RemoveBelow(std::span<float> weights, float bound) { ZeroBelow(weights.data(), weights.size(), bound); }

MassAndCount MassAtLeast(std::span<const float> weights, float bound) {
  MassAndCount result;
  for (size_t begin = 0; begin < weights.size(); begin += kWeightBlock) {
    SumAtLeast(weights.data() + begin, std::min(kWeightBlock, weights.size() - begin), bound, &result.mass,
               &result.count);
  }
  return result;
}

void ScaleWeights(std::span<const float> weights, double scale, std::span<double> scaled) {
  OUTRIDER_CHECK(weights.size() == scaled.size());
  Scale(weights.data(), scale, scaled.data(), weights.size());
}

void SubtractWeights(std::span<const float> q, double scale, std::span<double> residual) {
  OUTRIDER_CHECK(q.size() == residual.size());
  Subtract(q.data(), scale, residual.data(), q.size());
}

double OverlapMass(std::span<const float> p, double scale_p, std::span<const float> q, double scale_q) {
  OUTRIDER_CHECK(p.size() == q.size());
  return Sum(SmallerRow{p.data(), scale_p, q.data(), scale_q}, p.size());
}

}  // namespace outrider
