#include "common/serve/model_service.h"
#include "draft_service/draft_decider.h"
#include "draft_service/draft_service.h"

int main(int argc, char** argv) {
  return outrider::RunModelService(
      {.name = "draft",
       .description = "Proposes tokens, and the distributions they were drawn from, with the draft model.",
       .listen = "127.0.0.1:7071",
       .metrics_listen = "127.0.0.1:9071",
       .make_decider = [] { return std::make_unique<outrider::DraftDecider>(); },
       .make_service =
           [](outrider::Worker& worker, const outrider::v1::ServerInfo& info) {
             return std::make_unique<outrider::DraftService>(worker, info);
           }},
      argc, argv);
}
