// What the commands print under --json. Scripts read it: names stay.
#pragma once

#include <string>

#include "client/client.h"

namespace outrider {

// One object on one line, without its end.
std::string ToJson(const Completion& completion);
std::string ToJson(const v1::DescribeResponse& description);

}  // namespace outrider
