// Whether a server of this process takes connections.
#pragma once

#include <string>

namespace outrider {

// Connects to "HOST:PORT", which a server has bound, and sends bytes that no protocol knows, so that a server
// that takes the connection answers or closes it. False if neither happens within a second, if the connection
// is refused, or if there is no descriptor for it. Any thread.
bool TakesConnections(const std::string& bound);

}  // namespace outrider
