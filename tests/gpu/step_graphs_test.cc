// Which steps are captured, and which graphs are kept. A step here writes its number.
#include "common/engine/cuda/step_graphs.h"

#include <gmock/gmock.h>

#include "gpu_testing.h"

namespace outrider::testing {
namespace {

using Capture = cuda::StepGraphs::Capture;

class StepGraphsTest : public ::testing::Test {
 protected:
  static constexpr size_t kMost = 2;

  StepGraphsTest() : graphs_(kMost), written_(1) {
    Expect(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, /*priority=*/0));
  }
  ~StepGraphsTest() override {
    graphs_.Drop();
    Expect(cudaStreamDestroy(stream_));
  }

  // Runs a step whose shape has this number. Returns whether that took a graph.
  bool Run(int number, Capture capture = Capture::kOnSecondSight) {
    cuda::GraphShape shape;
    shape.step.rows = number;
    const auto enqueue = [&] {
      return cuda::ToStatus(cudaMemsetAsync(written_.data(), number, 1, stream_), "running a step");
    };
    const cudaGraphExec_t graph = graphs_.Find(
        shape, capture, stream_, [&] { return capture_fails_.ok() ? enqueue() : capture_fails_; });
    if (graph != nullptr) {
      Expect(cudaGraphLaunch(graph, stream_));
    } else {
      EXPECT_TRUE(enqueue().ok());
    }
    Expect(cudaStreamSynchronize(stream_));
    EXPECT_EQ(written_.Read()[0], number);
    return graph != nullptr;
  }

  cuda::StepGraphs graphs_;
  absl::Status capture_fails_;

 private:
  cudaStream_t stream_ = nullptr;
  const DeviceArray<uint8_t> written_;
};

TEST_F(StepGraphsTest, AShapeIsCapturedOnSecondSight) {
  EXPECT_FALSE(Run(1));
  EXPECT_EQ(graphs_.captures().count, 0);
  EXPECT_TRUE(Run(1));
  EXPECT_TRUE(Run(1));
  EXPECT_EQ(graphs_.captures().count, 1);
  EXPECT_TRUE(graphs_.captures().failure.ok());
}

TEST_F(StepGraphsTest, AShapeIsCapturedAtOnceOrNotAtAllWhereThatIsWanted) {
  EXPECT_TRUE(Run(1, Capture::kAtOnce));
  for (int time = 0; time < 3; ++time) EXPECT_FALSE(Run(2, Capture::kNever));
  EXPECT_FALSE(Run(2)) << "a step that was not to be captured counted as seen";
  EXPECT_TRUE(Run(2));
}

TEST_F(StepGraphsTest, TheLeastRecentlyUsedOneGoes) {
  EXPECT_TRUE(Run(1, Capture::kAtOnce));
  EXPECT_TRUE(Run(2, Capture::kAtOnce));
  EXPECT_TRUE(Run(1));
  EXPECT_TRUE(Run(3, Capture::kAtOnce));
  EXPECT_TRUE(Run(1, Capture::kNever));
  EXPECT_FALSE(Run(2, Capture::kNever));
  EXPECT_TRUE(Run(3, Capture::kNever));
}

TEST_F(StepGraphsTest, ShapesThatComeOnceTakeNoGraphsPlace) {
  EXPECT_TRUE(Run(1, Capture::kAtOnce));
  EXPECT_TRUE(Run(2, Capture::kAtOnce));
  for (int number = 3; number < 200; ++number) EXPECT_FALSE(Run(number));
  EXPECT_TRUE(Run(1, Capture::kNever));
  EXPECT_TRUE(Run(2, Capture::kNever));
}

// A capture that fails takes time, and further ones would too.
TEST_F(StepGraphsTest, AfterAFailureNoneIsCapturedAndTheOthersStayInUse) {
  EXPECT_TRUE(Run(1, Capture::kAtOnce));
  capture_fails_ = absl::ResourceExhaustedError("no memory for it");
  EXPECT_FALSE(Run(2, Capture::kAtOnce));
  EXPECT_EQ(graphs_.captures().failure, capture_fails_);
  capture_fails_ = absl::OkStatus();
  EXPECT_FALSE(Run(3, Capture::kAtOnce));
  EXPECT_TRUE(Run(1));
  EXPECT_EQ(graphs_.captures().count, 1);
  EXPECT_FALSE(graphs_.captures().failure.ok());
}

}  // namespace
}  // namespace outrider::testing
