// Waits for services that were just started, and says how far they are.
#pragma once

#include "absl/status/statusor.h"
#include "client/cli/local_services.h"
#include "client/cli/signals.h"
#include "client/sdk/client.h"

namespace outrider {

// Returns once the coordinator has both servers. The error of a service that ended, DEADLINE_EXCEEDED after
// two minutes, or CANCELLED with *stop_signal set. Shows progress on standard error if that is a terminal.
absl::StatusOr<Client> WaitUntilServing(LocalServices& services, Signals& signals, int* stop_signal);

}  // namespace outrider
