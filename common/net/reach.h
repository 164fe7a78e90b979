// Whether a server of this process takes connections.
#pragma once

#include <string>

namespace outrider {

// Connects to "HOST:PORT", which a server has bound, and says what no protocol knows: whoever takes the
// connection answers or closes it. False if nobody does within a second, if the connection is refused, or if
// there is no descriptor for it. Any thread.
bool TakesConnections(const std::string& bound);

}  // namespace outrider
