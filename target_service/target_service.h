// The gRPC service of the target.
#pragma once

#include <memory>

#include "common/serve/model_service.h"

namespace outrider {

// Converts items to work and answers to results. Thread-safe. Arguments are as in
// ModelServiceSpec::make_service.
std::unique_ptr<StreamService> MakeTargetService(Worker& worker, const v1::ServerInfo& info,
                                                 GrammarCache* grammars, Tracer* tracer);

// The target's part of a program, for RunModelProgram.
ModelServiceSpec TargetSpec();

}  // namespace outrider
