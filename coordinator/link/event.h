// An event of a GrpcContext, where requests are served.
#pragma once

#include "common/net/event.h"
#include "coordinator/link/grpc_timer.h"

namespace outrider {

using Event = BasicEvent<GrpcTimer>;

}  // namespace outrider
