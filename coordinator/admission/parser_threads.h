// Threads for requests that take long to parse, so that other requests' rounds go on meanwhile.
#pragma once

#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "common/net/asio.h"
#include "coordinator/admission/admission.h"

namespace outrider {

// Clients take turns on the threads. Executor thread; outlives its calls.
class ParserThreads {
 public:
  ParserThreads(asio::any_io_executor executor, int threads)
      : turns_(std::move(executor), {.max_samples = threads}), threads_(static_cast<size_t>(threads)) {}

  // Runs `parse` on one of the threads and returns its absl::StatusOr, or the error of Admission if the turn
  // of `client` did not come. `ticket` holds the call's place meanwhile: its Cancel ends the wait. `parse`
  // must not use anything that others change meanwhile.
  template <typename Parse>
  asio::awaitable<std::invoke_result_t<Parse&>> Run(const std::string& client, Clock::time_point deadline,
                                                    std::unique_ptr<Admission::Ticket>& ticket,
                                                    Parse& parse) {
    auto entered = turns_.Enter(client, 1, [](absl::Status) {});
    if (!entered.ok()) co_return entered.status();
    ticket = *std::move(entered);
    const absl::Cleanup leave = [&ticket] { ticket = nullptr; };
    if (absl::Status status = co_await ticket->WaitForTurn(deadline); !status.ok()) co_return status;
    const auto there = [&parse]() -> asio::awaitable<std::invoke_result_t<Parse&>> { co_return parse(); };
    co_return co_await asio::co_spawn(threads_, there, asio::use_awaitable);
  }

  const Admission& turns() const { return turns_; }

 private:
  Admission turns_;
  asio::thread_pool threads_;
};

}  // namespace outrider
