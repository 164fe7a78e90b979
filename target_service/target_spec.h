// What a program says of the target that it serves.
#pragma once

#include "common/serve/model_service.h"

namespace outrider {

ModelServiceSpec TargetSpec();

}  // namespace outrider
