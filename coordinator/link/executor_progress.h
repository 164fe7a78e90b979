// Whether the executor gets on with its work.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "common/net/asio.h"

namespace outrider {

// For a StallWatch: says whether the executor has not come to a task that an earlier call gave it. The result
// is for one thread.
inline std::function<bool()> ExecutorIsStuck(const asio::any_io_executor& executor) {
  return [executor, done = std::make_shared<std::atomic<bool>>(true)] {
    if (!done->exchange(false)) return true;
    asio::post(executor, [done] { *done = true; });
    return false;
  };
}

}  // namespace outrider
