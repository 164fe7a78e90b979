// Handles the flags and results of benchmark programs.
#pragma once

#include <CLI/CLI.hpp>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "common/obs/flags.h"
#include "common/text/json.h"

namespace outrider {

// A flag for a number in [least, most], or for several.
template <class Value, class Bound>
CLI::Option* AddNumber(CLI::App& app, const char* flag, Value& value, const char* help, Bound least,
                       Bound most) {
  return app.add_option(flag, value, help)->check(CLI::Range(least, most))->capture_default_str();
}

// Parses the command line, measures, and writes the report to the file that --json names. Returns the exit
// code of the program.
inline int RunBenchmark(CLI::App& app, int argc, char** argv,
                        absl::FunctionRef<absl::StatusOr<nlohmann::ordered_json>()> measure) {
  std::string json;
  app.add_option("--json", json, "file for the results");
  if (const std::optional<int> end = ParseCommandLine(app, argc, argv)) return *end;
  const absl::StatusOr<nlohmann::ordered_json> report = measure();
  if (!report.ok()) {
    std::cerr << app.get_name() << ": " << report.status().message() << "\n";
    return 1;
  }
  if (json.empty()) return 0;
  std::ofstream file(json);
  file << DumpJson(*report) << "\n";
  if (file.flush()) return 0;
  std::cerr << app.get_name() << ": cannot write " << json << "\n";
  return 1;
}

}  // namespace outrider
