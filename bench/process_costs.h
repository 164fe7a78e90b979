// Costs of the processes that this one has started: context switches and CPU time.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

namespace outrider {

struct ProcessCosts {
  double voluntary = 0;    // context switches: a thread went to sleep
  double involuntary = 0;  // a thread was preempted
  double cpu_seconds = 0;

  ProcessCosts operator-(const ProcessCosts& before) const {
    return {voluntary - before.voluntary, involuntary - before.involuntary, cpu_seconds - before.cpu_seconds};
  }
};

// Resident memory of the processes that this one has started and whose program has this name.
inline double ResidentBytesOfChildren(const std::string& program) {
  namespace fs = std::filesystem;
  double bytes = 0;
  std::error_code ignored;
  for (const fs::directory_entry& self : fs::directory_iterator("/proc/self/task", ignored)) {
    std::ifstream children(self.path() / "children");
    for (std::string pid; children >> pid;) {
      std::string name;
      std::ifstream("/proc/" + pid + "/comm") >> name;
      if (name != program.substr(0, 15)) continue;  // the kernel cuts names
      std::ifstream status("/proc/" + pid + "/status");
      for (std::string field; status >> field;) {
        double kilobytes = 0;
        if (field == "VmRSS:" && status >> kilobytes) bytes += kilobytes * 1024;
      }
    }
  }
  return bytes;
}

// The costs of all threads that run now; zero if there is no /proc.
inline ProcessCosts CostsOfChildren() {
  namespace fs = std::filesystem;
  ProcessCosts costs;
  std::error_code ignored;
  for (const fs::directory_entry& self : fs::directory_iterator("/proc/self/task", ignored)) {
    std::ifstream children(self.path() / "children");
    for (std::string pid; children >> pid;) {
      // A process, or a thread, may end meanwhile.
      for (auto task = fs::directory_iterator("/proc/" + pid + "/task", ignored);
           task != fs::directory_iterator(); task.increment(ignored)) {
        double nanoseconds = 0;
        std::ifstream(task->path() / "schedstat") >> nanoseconds;
        costs.cpu_seconds += nanoseconds * 1e-9;
        std::ifstream status(task->path() / "status");
        for (std::string name; status >> name;) {
          if (name == "voluntary_ctxt_switches:" || name == "nonvoluntary_ctxt_switches:") {
            double count = 0;
            status >> count;
            (name[0] == 'v' ? costs.voluntary : costs.involuntary) += count;
          }
        }
      }
    }
  }
  return costs;
}

}  // namespace outrider
