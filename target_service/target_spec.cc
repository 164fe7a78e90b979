#include "target_service/target_spec.h"

#include <CLI/CLI.hpp>
#include <memory>

#include "target_service/rejection_sampler.h"
#include "target_service/target_service.h"

namespace outrider {

ModelServiceSpec TargetSpec() {
  const auto inexact_trees = std::make_shared<bool>(false);
  return {.name = "target",
          .listen = "127.0.0.1:7072",
          .define_flags =
              [inexact_trees](CLI::App& app, RunnerOptions& runner) {
                app.add_option("--heads", runner.heads,
                               "folder of heads with which the target proposes tokens itself; may be given "
                               "several times")
                    ->type_name("DIR");
                app.add_flag("--inexact-trees", *inexact_trees,
                             "with an engine that rounds a tree otherwise than a chain: take trees also for "
                             "greedy decoding and the coupled rule, whose tokens may then differ from plain "
                             "decoding's");
              },
          .complete_info = [inexact_trees](v1::ServerInfo& info) { info.set_inexact_trees(*inexact_trees); },
          .make_sampler =
              [](const v1::ServerInfo& info) {
                return std::make_unique<RejectionSampler>(info.tree_row_invariant() || info.inexact_trees());
              },
          .make_service =
              [](Worker& worker, const v1::ServerInfo& info) {
                return std::make_unique<TargetService>(worker, info);
              }};
}

}  // namespace outrider
