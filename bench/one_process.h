// A pair whose two models outrider-pair serves.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "bench/pair_helpers.h"
#include "bench/temporary_folder.h"
#include "client/cli/local_services.h"
#include "client/cli/process.h"
#include "common/text/strings.h"

namespace outrider {

// Like LocalServices, except that draft and target share a process.
class OneProcess {
 public:
  // Returns once both models are served. Uses the options for models, engine, dtypes and threads.
  static absl::StatusOr<std::unique_ptr<OneProcess>> Start(const LocalServicesOptions& options) {
    auto started = std::unique_ptr<OneProcess>(new OneProcess);
    const std::string programs = std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
    const std::string target = started->Address("target"), draft = started->Address("draft"),
                      listen = started->Address("coordinator"), log = started->Path("log");
    const std::string& draft_dtype = options.draft_dtype.empty() ? options.dtype : options.draft_dtype;
    auto models = ChildProcess::Spawn(
        {programs + "/outrider-pair", "--target-listen=" + target, "--draft-listen=" + draft,
         "--target-model=" + options.target_model, "--draft-model=" + options.draft_model,
         "--target-dtype=" + options.dtype, "--draft-dtype=" + draft_dtype, "--engine=" + options.engine,
         "--device=" + options.device, absl::StrCat("--threads=", options.threads),
         "--metrics-listen=", "--log-format=json", "--top-n=256",
         "--kv-memory-fraction=0.6"},  // for both; the processes of LocalServices take 0.3 each
        log);
    if (!models.ok()) return models.status();
    started->models_ = *std::move(models);
    auto coordinator =
        ChildProcess::Spawn({programs + "/outrider-coordinator", "--listen=" + listen, "--target=" + target,
                             "--draft=" + draft, "--tokenizer=" + options.target_model, "--metrics-listen=",
                             "--http-listen=", absl::StrCat("--draft-budget=", options.draft_budget_seconds)},
                            started->Path("coordinator.log"));
    if (!coordinator.ok()) return coordinator.status();
    started->coordinator_ = *std::move(coordinator);
    auto client = ConnectWhenServing(*started->coordinator_, listen, started->models_.get());
    if (!client.ok()) {
      return absl::UnavailableError(
          absl::StrCat(client.status().message(), ": ", ReasonInLog(ReadFile(log).value_or(""))));
    }
    started->client_ = *std::move(client);
    return started;
  }

  const Client& client() const { return *client_; }

 private:
  OneProcess() = default;
  std::string Path(const char* name) const { return folder_.path() + "/" + name; }
  std::string Address(const char* name) const { return "unix:" + Path(name); }

  const TemporaryFolder folder_;
  std::unique_ptr<ChildProcess> models_, coordinator_;
  std::optional<Client> client_;
};

}  // namespace outrider
