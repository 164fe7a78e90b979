// The gRPC service of the draft.
#pragma once

#include <memory>

#include "common/serve/model_service.h"

namespace outrider {

// Converts items to work and answers to results. Thread-safe. Arguments are as in
// ModelServiceSpec::make_service. Keeps `default_top_n` tokens of a distribution unless the request says
// otherwise.
std::unique_ptr<StreamService> MakeDraftService(Worker& worker, const v1::ServerInfo& info,
                                                GrammarCache* grammars, Tracer* tracer, int default_top_n);

// The draft's part of a program, for RunModelProgram.
ModelServiceSpec DraftSpec();

}  // namespace outrider
