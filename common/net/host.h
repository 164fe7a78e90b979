// The name by which a client calls the host that it asks.
#pragma once

#include "absl/strings/string_view.h"

namespace outrider {

// Whether `host`, with or without a port, is a name of the public domain name system: not an address, a name
// without a dot, or one under localhost, local or internal. The owner of a public name can point it at a
// loopback address, so that pages from there reach what listens on it (DNS rebinding).
bool IsPublicName(absl::string_view host);

}  // namespace outrider
