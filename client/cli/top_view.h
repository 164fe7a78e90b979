// The screen of `outrider top`.
#pragma once

#include <array>
#include <optional>
#include <string>

#include "client/cli/local_services.h"
#include "client/cli/metrics_page.h"

namespace outrider {

// The pages of the three services, by Service; nothing for one that did not answer.
using MetricsPages = std::array<std::optional<MetricsPage>, kServices>;

// What happened in the `seconds` from one look to the next, a line for each subject. A service missing in
// either gets a line that says so; a draft that the coordinator does not have gets none.
std::string TopView(const MetricsPages& before, const MetricsPages& after, double seconds);

}  // namespace outrider
