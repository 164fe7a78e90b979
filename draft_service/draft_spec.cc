#include "draft_service/draft_spec.h"

#include <CLI/CLI.hpp>
#include <memory>

#include "draft_service/draft_sampler.h"
#include "draft_service/draft_service.h"

namespace outrider {

ModelServiceSpec DraftSpec() {
  // At most 600 bytes per drafted token. docs/exactness.md says what the truncation costs in acceptance.
  const auto top_n = std::make_shared<int>(64);
  return {
      .name = "draft",
      .listen = "127.0.0.1:7071",
      // Its steps are short, and whoever it drafts for waits for them.
      .high_priority = true,
      .define_flags =
          [top_n](CLI::App& app, RunnerOptions& runner) {
            app.add_option("--top-n", *top_n,
                           "tokens kept of a distribution unless a request says otherwise; as many as the "
                           "vocabulary or more: all")
                ->check(CLI::Range(1, 1 << 30))
                ->capture_default_str();
            app.add_option("--frequent-tokens", runner.frequent_tokens,
                           "propose only so many tokens, the first of frequent_tokens.json in the model's "
                           "folder, which makes the head smaller; 0: all")
                ->check(CLI::Range(0, 1 << 24))
                ->capture_default_str();
          },
      .make_sampler = [](const v1::ServerInfo&) { return std::make_unique<DraftSampler>(); },
      .make_service =
          [top_n](Worker& worker, const v1::ServerInfo& info) {
            return std::make_unique<DraftService>(worker, info, *top_n);
          }};
}

}  // namespace outrider
