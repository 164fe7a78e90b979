// What a program says of the draft that it serves.
#pragma once

#include "common/serve/model_service.h"

namespace outrider {

ModelServiceSpec DraftSpec();

}  // namespace outrider
