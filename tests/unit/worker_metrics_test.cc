// What a service's metrics and log say about its engine's CUDA graphs.
#include <gmock/gmock.h>
#include <prometheus/registry.h>

#include <memory>
#include <string>
#include <utility>

#include "changed_model.h"
#include "common/serve/served_model.h"
#include "target_service/rejection_sampler.h"

namespace outrider {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class GraphMetrics : public ::testing::Test {
 protected:
  double Value(const std::string& name) {
    for (const prometheus::MetricFamily& family : registry_.Collect()) {
      if (family.name != name) continue;
      const prometheus::ClientMetric& metric = family.metric.at(0);
      return family.type == prometheus::MetricType::Counter ? metric.counter.value : metric.gauge.value;
    }
    ADD_FAILURE() << "there is no " << name;
    return -1;
  }
  double captured() { return Value("outrider_target_graph_captures_total"); }
  double ended() { return Value("outrider_target_graph_captures_ended"); }

  // The log of this report of the engine's.
  std::string LogOf(const GraphCaptures& captures) {
    ::testing::internal::CaptureStdout();  // where the log goes without InitLog
    hooks_.on_graphs(captures);
    return ::testing::internal::GetCapturedStdout();
  }

  prometheus::Registry registry_;
  const Worker::Hooks hooks_ = MetricHooks(registry_, "target");
};

TEST_F(GraphMetrics, CountCaptures) {
  EXPECT_EQ(captured(), 0);
  EXPECT_THAT(LogOf({.count = 40, .failure = {}}), IsEmpty());
  EXPECT_THAT(LogOf({.count = 41, .failure = {}}), IsEmpty());
  EXPECT_EQ(captured(), 41);
  EXPECT_EQ(ended(), 0);
}

TEST_F(GraphMetrics, SayOnceWhyCapturesEnded) {
  const GraphCaptures captures = {.count = 7, .failure = absl::ResourceExhaustedError("out of memory")};
  EXPECT_THAT(LogOf(captures), AllOf(HasSubstr("steps are no longer captured"), HasSubstr("target"),
                                     HasSubstr("out of memory")));
  EXPECT_EQ(ended(), 1);
  EXPECT_EQ(captured(), 7);
  EXPECT_THAT(LogOf(captures), IsEmpty());
}

class CapturingModel final : public testing::ChangedModel {
 public:
  using ChangedModel::ChangedModel;
  GraphCaptures graph_captures() const override { return {.count = 3, .failure = {}}; }
};

TEST_F(GraphMetrics, ShowWhatWasCapturedAtLoad) {
  RunnerOptions options;
  options.model_dir = "tests/data/engine/mha-float32";
  options.threads = 1;
  options.kv_blocks = 4;
  const testing::WrappingBackend backend([](std::unique_ptr<Model> model, const DecoderConfig& /*spec*/) {
    return std::make_unique<CapturingModel>(std::move(model));
  });
  const Worker worker(Runner::Load(options, backend).value(), std::make_unique<RejectionSampler>(),
                      WorkerOptions(), hooks_);
  EXPECT_EQ(captured(), 3);
}

}  // namespace
}  // namespace outrider
