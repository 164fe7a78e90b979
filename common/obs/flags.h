// Command-line conventions of all programs: CLI11, with errors on one line.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace outrider {

// Formats an error as "PROGRAM [COMMAND]: <what is wrong> (--help lists the flags)".
inline void UseOneLineErrors(CLI::App& app) {
  app.failure_message([](const CLI::App* failed, const CLI::Error& error) {
    std::string name = failed->get_name();
    for (const CLI::App* command : failed->get_subcommands()) name += " " + command->get_name();
    return name + ": " + error.what() + " (--help lists the flags)\n";
  });
}

}  // namespace outrider
