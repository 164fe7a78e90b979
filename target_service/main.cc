#include "common/serve/model_service.h"
#include "target_service/rejection_sampler.h"
#include "target_service/target_service.h"

int main(int argc, char** argv) {
  return outrider::RunModelService(
      {.name = "target",
       .description = "Verifies drafted tokens with the target model, corrects, and owns the paged KV cache.",
       .listen = "127.0.0.1:7072",
       .metrics_listen = "127.0.0.1:9072",
       .define_flags = nullptr,
       .make_sampler = [] { return std::make_unique<outrider::RejectionSampler>(); },
       .make_service =
           [](outrider::Worker& worker, const outrider::v1::ServerInfo& info) {
             return std::make_unique<outrider::TargetService>(worker, info);
           }},
      argc, argv);
}
