// Which matrices are in memory while weights are packed for the CPU's kernels.
#include "common/engine/cpu/cpu_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "absl/strings/match.h"

namespace outrider::testing {
namespace {

// A source that allocates each tensor when it is asked for, and counts the matrices in memory.
class CountingTensors final : public TensorSource {
 public:
  explicit CountingTensors(ElementType type_of_keys = ElementType::kFloat32) : type_of_keys_(type_of_keys) {}

  absl::StatusOr<TensorView> Get(absl::string_view name, absl::Span<const int64_t> shape) const override {
    if (shape.size() == 2) most_ = std::max(most_, ++living_);
    TensorView view = {absl::StrContains(name, "k_proj") ? type_of_keys_ : ElementType::kFloat32,
                       {shape.begin(), shape.end()}};
    std::shared_ptr<char[]> data(new char[view.bytes()](), [this, matrix = shape.size() == 2](char* memory) {
      if (matrix) --living_;
      delete[] memory;
    });
    view.data = data.get();
    view.memory = std::move(data);
    return view;
  }
  int living() const { return living_; }
  int most() const { return most_; }

 private:
  const ElementType type_of_keys_;
  mutable int living_ = 0, most_ = 0;
};

DecoderConfig SmallSpec() {
  return {.vocab_size = 32,
          .hidden_size = 16,
          .intermediate_size = 32,
          .layers = 5,
          .heads = 2,
          .kv_heads = 1,
          .head_dim = 8,
          .max_position_embeddings = 8};
}

TEST(CpuWeights, HoldOnlyWhatIsBeingPackedAndTheEmbedding) {
  const CountingTensors source;
  ThreadPool pool(1);
  const auto weights = LoadCpuWeights(source, SmallSpec(), Storage::kFloat32, false, pool, nullptr);
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(source.most(), 1 + 3) << "queries, keys and values";
  EXPECT_EQ(source.living(), 0);
}

TEST(CpuWeights, MayHaveDifferentTypesInOneMatrix) {
  const CountingTensors source(ElementType::kBFloat16);
  ThreadPool pool(1);
  EXPECT_TRUE(LoadCpuWeights(source, SmallSpec(), Storage::kBFloat16, false, pool, nullptr).ok());
  EXPECT_EQ(source.living(), 0);
}

}  // namespace
}  // namespace outrider::testing
