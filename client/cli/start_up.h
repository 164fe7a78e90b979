// Waits for services that were just started, and says how far they are.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/local_services.h"
#include "client/cli/signals.h"
#include "client/sdk/client.h"

namespace outrider {

// How the first service that has ended did so; OK while all run.
absl::Status FirstDeath(LocalServices& services);

// Returns once the coordinator has its servers. An error of `check`, which is called again and again,
// DEADLINE_EXCEEDED after two minutes, or CANCELLED with *stop_signal set. Shows progress on standard error
// if that is a terminal.
absl::StatusOr<Client> WaitUntilServing(
    LocalServices& services, Signals& signals, int* stop_signal,
    const std::function<absl::Status(LocalServices&)>& check = FirstDeath);

}  // namespace outrider
