#include "common/engine/cpu/product.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "common/engine/cpu/packed_blocks.h"
#include "common/engine/decoder/narrow_floats.h"
#include "common/engine/decoder/rounded_blocks.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

// Panels per task of a matrix product: enough to amortise taking a task, few enough to balance the load.
constexpr int kPanelsPerTask = 4;
// Matrix products below this cost stay on the calling thread. The unit is the cost of one weight with one
// row; each further row adds a quarter. Handing work to another core costs a microsecond or two.
constexpr int64_t kMinParallelCost = 160 << 10;
// Below this many rows, the element-wise work of a layer takes less time than handing it to other threads.
constexpr int kMinParallelRows = 16;

class CpuMatrix final : public Matrix {
 public:
  CpuMatrix(Buffer memory, const PackedMatrix& matrix, const Multiplier& multiplier)
      : memory_(std::move(memory)), matrix_(matrix), multiplier_(multiplier) {}

  absl::Status Multiply(absl::Span<const float> x, absl::Span<float> y) override {
    operands_.resize(x.size() * multiplier_.operand_bytes());
    multiplier_.ToOperands(x.data(), static_cast<int64_t>(x.size()), operands_.data());
    const Product product = {matrix_, Epilogue::kStore};
    multiplier_.Multiply(product, product, static_cast<int>(x.size()) / matrix_.k, operands_.data(),
                         reinterpret_cast<char*>(y.data()), matrix_.n);
    return absl::OkStatus();
  }

 private:
  const Buffer memory_;
  const PackedMatrix matrix_;
  const Multiplier multiplier_;
  std::vector<char> operands_;
};

}  // namespace

void Multiplier::ToOperands(const float* from, int64_t count, char* to) const {
  if (operand_bytes_ == sizeof(float)) {
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  uint16_t* const rounded = reinterpret_cast<uint16_t*>(to);
  for (int64_t i = 0; i < count; ++i) rounded[i] = ToBFloat16(from[i]);
}

void Multiplier::Multiply(const Product& product, const Product& next, int rows, const char* x, char* y,
                          int y_columns) const {
  if (rows == 0) return;
  const Partition partition = Divide(product, rows), next_partition = Divide(next, rows);
  const Storage storage = product.matrix.storage;
  const bool in_blocks = BlockFormatOf(storage).bits > 0;
  if (in_blocks) PrepareBlocks(rows, product.matrix.k, x);
  thread_pool_.Run(partition.tasks, [&](int task, int worker) {
    const bool ends_range =
        task + 1 == partition.tasks || task + 1 == thread_pool_.FirstTask(worker + 1, partition.tasks);
    const PackedMatrix& next_matrix = ends_range ? next.matrix : product.matrix;
    const int next_panel =
        ends_range ? next_partition.FirstPanel(thread_pool_.FirstTask(worker, next_partition.tasks))
                   : partition.FirstPanel(task + 1);
    LinearArgs args;
    args.weights = product.matrix.data;
    args.storage = storage;
    args.epilogue = product.epilogue;
    args.k = product.matrix.k;
    args.n = product.matrix.n;
    args.rows = rows;
    args.x = in_blocks && kernels_.rounds_blocks ? static_cast<const void*>(levels_.data()) : x;
    args.sums = sums_.data();
    args.scales = scales_.data();
    args.y = y;
    args.y_columns = y_columns;
    args.first_panel = partition.FirstPanel(task);
    args.last_panel = partition.FirstPanel(task + 1);
    args.next = next_matrix.data +
                static_cast<size_t>(next_panel) * PackedBytes(kPanel, next_matrix.k, next_matrix.storage);
    kernels_.linear(args);
  });
}

void Multiplier::ForRows(int rows, absl::FunctionRef<void(int row)> fn) const {
  if (rows < kMinParallelRows) {
    for (int row = 0; row < rows; ++row) fn(row);
  } else {
    thread_pool_.Run(rows, [&](int row, int) { fn(row); });
  }
}

void Multiplier::PrepareBlocks(int rows, int k, const char* x) const {
  const size_t blocks = static_cast<size_t>(k / kBlockColumns);
  sums_.resize(static_cast<size_t>(rows) * blocks);
  if (kernels_.rounds_blocks) {
    scales_.resize(sums_.size());
    levels_.resize(sums_.size() * kBlockColumns);
  }
  ForRows(rows, [&](int row) {
    const size_t block = static_cast<size_t>(row) * blocks;
    OperandBlocks to = {nullptr, nullptr, &sums_[block]};
    if (kernels_.rounds_blocks) to = {&levels_[block * kBlockColumns], &scales_[block], &sums_[block]};
    kernels_.prepare_blocks(x + block * kBlockColumns * operand_bytes_, static_cast<int64_t>(blocks), to);
  });
}

Multiplier::Partition Multiplier::Divide(const Product& product, int rows) const {
  const PackedMatrix& matrix = product.matrix;
  Partition partition;
  partition.panels_per_unit = product.epilogue == Epilogue::kSiluMul ? 2 : 1;
  const int unit = partition.panels_per_unit * kPanel;
  partition.units = (matrix.n + unit - 1) / unit;
  const int per_thread = (partition.units + thread_pool_.threads() - 1) / thread_pool_.threads();
  const int units_per_task = kPanelsPerTask / partition.panels_per_unit;
  const int tasks_per_thread = std::max(1, (per_thread + units_per_task / 2) / units_per_task);
  const int64_t cost = static_cast<int64_t>(matrix.n) * matrix.k * (3 + rows) / 4;
  partition.tasks =
      cost < kMinParallelCost ? 1 : std::min(partition.units, tasks_per_thread * thread_pool_.threads());
  return partition;
}

absl::StatusOr<std::unique_ptr<Matrix>> LoadCpuMatrix(const TensorView& weights, Storage storage,
                                                      bool in_blocks, const Kernels& kernels,
                                                      ThreadPool& thread_pool) {
  const int n = static_cast<int>(weights.shape[0]), k = static_cast<int>(weights.shape[1]);
  MatrixSource source = Concatenated({weights});
  Storage packed = storage;
  if (in_blocks && HasWholeBlocks(k)) {
    packed = StorageOf(kRoundedFormat);
    source.blocks = {RoundedBlocks(weights)};
  }
  Buffer memory = OUTRIDER_TRY(Buffer::Allocate(PackedBytes(n, k, packed), "a head"));
  Pack(source, packed, thread_pool, memory.data());
  const PackedMatrix matrix{memory.data(), n, k, packed};
  return std::make_unique<CpuMatrix>(std::move(memory), matrix, Multiplier(kernels, thread_pool, storage));
}

}  // namespace outrider
