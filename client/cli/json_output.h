// What the commands print under --json. Scripts read it: names stay.
#pragma once

#include <string>
#include <vector>

#include "client/sdk/client.h"

namespace outrider {

// One object on one line, without its end. Of several samples: {"samples": [...]} with an object for each.
std::string ToJson(const std::vector<Completion>& samples);
std::string ToJson(const v1::DescribeResponse& description);

}  // namespace outrider
