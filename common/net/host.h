// What a client calls the host that it asks.
#pragma once

#include "absl/strings/string_view.h"

namespace outrider {

// Whether a name, with a port or without, can lead anybody's browser here: one of the public domain name
// system, and not an address, a name without a dot, or one under localhost, local or internal. Whoever owns
// such a name can let it stand for a loopback address, so that pages from there reach what listens on it (DNS
// rebinding).
bool IsPublicName(absl::string_view host);

}  // namespace outrider
