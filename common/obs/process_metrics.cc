#include "common/obs/process_metrics.h"

#include <prometheus/client_metric.h>
#include <prometheus/metric_family.h>
#include <prometheus/metric_type.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <system_error>

namespace outrider {
namespace {

struct ProcessStat {
  uint64_t user_ticks = 0, system_ticks = 0, threads = 0, start_ticks = 0, virtual_bytes = 0,
           resident_pages = 0;
};

// Zeros if /proc is not mounted.
ProcessStat ReadStat() {
  ProcessStat stat;
  std::ifstream file("/proc/self/stat");
  // The name of the program, in parentheses, may have spaces. Field 3 follows it (proc(5)).
  file.ignore(std::numeric_limits<std::streamsize>::max(), ')');
  std::string skipped;
  const auto skip = [&](int fields) {
    for (int i = 0; i < fields; ++i) file >> skipped;
  };
  skip(11);
  file >> stat.user_ticks >> stat.system_ticks;
  skip(4);
  file >> stat.threads;
  skip(1);
  file >> stat.start_ticks >> stat.virtual_bytes >> stat.resident_pages;
  return stat;
}

// Seconds since 1970; 0 if /proc is not mounted.
double BootTime() {
  std::ifstream file("/proc/stat");
  for (std::string key; file >> key;) {
    double seconds = 0;
    if (key == "btime" && file >> seconds) return seconds;
  }
  return 0;
}

double OpenDescriptors() {
  std::error_code error;
  const std::filesystem::directory_iterator entries("/proc/self/fd", error);
  const auto count = std::distance(begin(entries), end(entries));
  return count == 0 ? 0 : static_cast<double>(count - 1);  // without the iterator's own descriptor
}

double MaxDescriptors() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<double>(limit.rlim_cur);
}

}  // namespace

std::vector<prometheus::MetricFamily> ProcessMetrics::Collect() const {
  static const auto kTicks = static_cast<double>(sysconf(_SC_CLK_TCK));
  static const auto kPageBytes = static_cast<double>(sysconf(_SC_PAGESIZE));
  static const double kBootTime = BootTime();
  const ProcessStat stat = ReadStat();
  std::vector<prometheus::MetricFamily> families;
  const auto gauge = [&](const char* name, const char* help, double value) {
    prometheus::ClientMetric metric;
    metric.gauge.value = value;
    families.push_back({name, help, prometheus::MetricType::Gauge, {metric}});
  };
  prometheus::ClientMetric cpu;
  cpu.counter.value = static_cast<double>(stat.user_ticks + stat.system_ticks) / kTicks;
  families.push_back({"process_cpu_seconds_total",
                      "User and system CPU time, in seconds.",
                      prometheus::MetricType::Counter,
                      {cpu}});
  gauge("process_resident_memory_bytes", "Resident memory, in bytes.",
        static_cast<double>(stat.resident_pages) * kPageBytes);
  gauge("process_virtual_memory_bytes", "Virtual memory, in bytes.", static_cast<double>(stat.virtual_bytes));
  gauge("process_start_time_seconds", "Start of the process, in seconds since 1970.",
        kBootTime + static_cast<double>(stat.start_ticks) / kTicks);
  gauge("process_threads", "Threads.", static_cast<double>(stat.threads));
  gauge("process_open_fds", "Open file descriptors.", OpenDescriptors());
  gauge("process_max_fds", "Limit of open file descriptors.", MaxDescriptors());
  return families;
}

}  // namespace outrider
