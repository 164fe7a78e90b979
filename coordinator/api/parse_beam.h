// What a request says about beam search.
#pragma once

#include "absl/status/status.h"
#include "coordinator/api/parse_request.h"
#include "coordinator/rounds/request.h"
#include "outrider/v1/inference.pb.h"
#include "outrider/v1/sequence.pb.h"

namespace outrider {

// If there is a search, fills in `beam`, and what it makes of the rest of the request, which has been parsed:
// draft and target are greedy, and what is drafted are trees where both can. INVALID_ARGUMENT, naming the
// field, for options out of range and for what goes with no search (GenerateRequest.beam).
absl::Status ParseBeam(const v1::GenerateRequest& proto, const RequestDefaults& defaults,
                       const v1::ServerInfo& target, Request& request);

}  // namespace outrider
