// The commands of `outrider`. Each returns the exit status: 0, 1 after an error line, or 128 + the signal
// that stopped it.
#pragma once

#include "client/cli/flags.h"

namespace outrider {

int RunGenerate(const GenerateFlags& flags);
int RunUp(const LocalServicesOptions& options);
int RunDescribe(const DescribeFlags& flags);
int RunTop(const TopFlags& flags);

// Prints one "error: ..." line; returns 1.
int PrintError(const absl::Status& status);

}  // namespace outrider
