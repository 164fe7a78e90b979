#include <unistd.h>

#include <cstdio>
#include <ctime>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/cli/commands.h"
#include "client/cli/signals.h"
#include "client/cli/top_view.h"

namespace outrider {
namespace {

MetricsPages FetchAll(const TopFlags& flags) {
  MetricsPages pages;
  for (Service service : {kTarget, kDraft, kCoordinator}) {
    auto page = FetchMetrics(flags.metrics[service]);
    if (page.ok()) pages[service] = *std::move(page);
  }
  return pages;
}

}  // namespace

int RunTop(const TopFlags& flags) {
  Signals signals;
  // Without a terminal, one look: for scripts.
  const bool live = isatty(STDOUT_FILENO) != 0 && !flags.once;
  MetricsPages before = FetchAll(flags);
  if (!before[kCoordinator]) return PrintError(FetchMetrics(flags.metrics[kCoordinator]).status());
  absl::Time then = absl::Now();
  if (live) std::printf("\033[2J\033[Hlooking for %g s ...", flags.interval_seconds);
  do {
    std::fflush(stdout);
    if (Signals::IsStop(signals.Wait(absl::Seconds(flags.interval_seconds)))) break;
    MetricsPages after = FetchAll(flags);
    const absl::Time now = absl::Now();
    const std::string view = TopView(before, after, absl::ToDoubleSeconds(now - then));
    const std::string title =
        absl::StrFormat("outrider top   %s   every %g s   %s\n\n", flags.metrics[kCoordinator],
                        flags.interval_seconds, absl::FormatTime("%H:%M:%S", now, absl::LocalTimeZone()));
    // Home, then down to the end: what was there before is gone, and nothing flickers.
    std::printf("%s%s%s%s", live ? "\033[H\033[J" : "", live ? title.c_str() : "", view.c_str(),
                live ? "\nCtrl-C ends this.\n" : "");
    before = std::move(after);
    then = now;
  } while (live);
  if (live) std::printf("\n");
  return 0;
}

}  // namespace outrider
