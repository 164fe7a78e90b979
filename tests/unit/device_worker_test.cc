// A worker that runs device tasks gives the same answers, to the bit, as one that decides on the host: both
// have the same logits.
#include "device_worker_testing.h"
#include "host_device_model.h"

namespace outrider::testing {
namespace {

constexpr int kTeam = 3;

std::unique_ptr<Worker> Start(bool device, std::unique_ptr<Sampler> sampler) {
  return StartDeviceWorker(std::move(sampler), [device](const RunnerOptions& options) {
    return device ? Runner::Load(options, HostDevice(kTeam)) : Runner::Load(options);
  });
}

class DeviceWorkerTest : public ::testing::TestWithParam<Setting> {};

TEST_P(DeviceWorkerTest, SaysWhatTheHostSays) {
  const Setting& setting = GetParam();
  const Counts counts = ExpectWhatTheHostSays(setting, Start);
  EXPECT_GT(counts.accepted, 0);
  // Draft and target are the same model. A q of 24 tokens gives each of them more probability than p does.
  const bool same = setting.temperature == 0 || setting.rule == Rule::kCoupled || setting.top_k > 0;
  EXPECT_EQ(counts.corrected == 0, same) << counts.corrected;
}

INSTANTIATE_TEST_SUITE_P(Settings, DeviceWorkerTest, ::testing::ValuesIn(Settings()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace outrider::testing
