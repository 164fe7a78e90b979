// Who can reach a listener.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace outrider {

// Whether only processes of this host can connect to a listener at this address, HOST:PORT or unix:PATH. A
// name other than "localhost" counts as reachable from elsewhere, wherever it leads.
bool IsLocalAddress(absl::string_view listen);

// INVALID_ARGUMENT, naming `flag`, for a listener that others can reach and that does not encrypt, unless
// `insecure` says that this is meant. Tokens do not count: anyone on the way can read them.
absl::Status CheckExposure(absl::string_view flag, absl::string_view listen, bool encrypts, bool insecure);

}  // namespace outrider
