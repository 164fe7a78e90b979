#include "target_service/target_spec.h"

#include <memory>

#include "target_service/rejection_sampler.h"
#include "target_service/target_service.h"

namespace outrider {

ModelServiceSpec TargetSpec() {
  return {.name = "target",
          .listen = "127.0.0.1:7072",
          .define_flags = nullptr,
          .make_sampler = [] { return std::make_unique<RejectionSampler>(); },
          .make_service =
              [](Worker& worker, const v1::ServerInfo& info) {
                return std::make_unique<TargetService>(worker, info);
              }};
}

}  // namespace outrider
