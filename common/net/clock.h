// The time that coroutines wait by.
#pragma once

#include <chrono>

namespace outrider {

using Clock = std::chrono::steady_clock;

inline double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace outrider
