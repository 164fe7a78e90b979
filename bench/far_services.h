// A second coordinator for services on this machine, with a chosen network delay to them.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "bench/delay_relay.h"
#include "bench/pair_helpers.h"
#include "bench/temporary_folder.h"
#include "client/cli/local_services.h"
#include "client/cli/process.h"

namespace outrider {

class FarServices {
 public:
  // `near`: services whose addresses are unix sockets; must outlive this. `delay` is one way, to each.
  static absl::StatusOr<std::unique_ptr<FarServices>> Start(const LocalServices& near,
                                                            const std::string& tokenizer,
                                                            std::chrono::duration<double> delay) {
    auto far = std::unique_ptr<FarServices>(new FarServices(near, delay));
    const std::string programs = std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
    const std::string listen = far->Address("coordinator");
    auto coordinator = ChildProcess::Spawn(
        {programs + "/outrider-coordinator", "--listen=" + listen, "--metrics-listen", "", "--http-listen",
         "", "--target=" + far->Address("target"), "--draft=" + far->Address("draft"),
         "--tokenizer=" + tokenizer, "--draft-budget=60"},
        far->Path("log"));
    if (!coordinator.ok()) return coordinator.status();
    far->coordinator_ = *std::move(coordinator);
    auto client = ConnectWhenServing(*far->coordinator_, listen);
    if (!client.ok()) return client.status();
    far->client_ = *std::move(client);
    return far;
  }
  ~FarServices() { io_.stop(); }

  const Client& client() const { return *client_; }
  // Bytes on the wire between the coordinator and each service, in both directions.
  double target_bytes() const { return static_cast<double>(to_target_.bytes()); }
  double draft_bytes() const { return static_cast<double>(to_draft_.bytes()); }

 private:
  FarServices(const LocalServices& near, std::chrono::duration<double> delay)
      : to_target_(io_, Path("target"), PathOf(near.address(kTarget))),
        to_draft_(io_, Path("draft"), PathOf(near.address(kDraft))) {
    to_target_.SetDelay(delay);
    to_draft_.SetDelay(delay);
  }
  static std::string PathOf(absl::string_view address) {
    return std::string(absl::StripPrefix(address, "unix:"));
  }
  std::string Path(const char* name) const { return absl::StrCat(folder_.path(), "/", name); }
  std::string Address(const char* name) const { return "unix:" + Path(name); }

  const TemporaryFolder folder_;
  asio::io_context io_;
  DelayRelay to_target_, to_draft_;
  std::jthread relays_{[this] { io_.run(); }};
  std::unique_ptr<ChildProcess> coordinator_;
  std::optional<Client> client_;
};

}  // namespace outrider
