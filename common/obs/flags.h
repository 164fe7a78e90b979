// How our programs read their command line: CLI11, with errors in one line.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace outrider {

// "PROGRAM: what is wrong (--help lists the flags)".
inline void UseOneLineErrors(CLI::App& app) {
  app.failure_message([](const CLI::App* failed, const CLI::Error& error) {
    return failed->get_name() + ": " + error.what() + " (--help lists the flags)\n";
  });
}

}  // namespace outrider
