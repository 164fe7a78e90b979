// Memory that runs out when a test says so.
#pragma once

#include <cstddef>
#include <cstdint>

namespace outrider {

// A larger allocation of this thread throws std::bad_alloc.
inline thread_local size_t largest_allocation = SIZE_MAX;

}  // namespace outrider
