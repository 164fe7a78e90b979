#include <CLI/CLI.hpp>

#include "common/serve/model_service.h"
#include "draft_service/draft_sampler.h"
#include "draft_service/draft_service.h"

int main(int argc, char** argv) {
  // At most 600 bytes per drafted token. docs/exactness.md says what the truncation costs in acceptance.
  int top_n = 64;
  return outrider::RunModelService(
      {.name = "draft",
       .description = "Proposes tokens, and the distributions they were drawn from, with the draft model.",
       .listen = "127.0.0.1:7071",
       .metrics_listen = "127.0.0.1:9071",
       .define_flags =
           [&](CLI::App& app) {
             app.add_option("--top-n", top_n,
                            "tokens kept of a distribution unless a request says otherwise; as many as the "
                            "vocabulary or more: all")
                 ->check(CLI::Range(1, 1 << 30))
                 ->capture_default_str();
           },
       .make_sampler = [] { return std::make_unique<outrider::DraftSampler>(); },
       .make_service =
           [&](outrider::Worker& worker, const outrider::v1::ServerInfo& info) {
             return std::make_unique<outrider::DraftService>(worker, info, top_n);
           }},
      argc, argv);
}
