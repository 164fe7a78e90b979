// How our programs read their command line: CLI11, with errors in one line.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace outrider {

// "PROGRAM COMMAND: what is wrong (--help lists the flags)", where there are commands.
inline void UseOneLineErrors(CLI::App& app) {
  app.failure_message([](const CLI::App* failed, const CLI::Error& error) {
    std::string name = failed->get_name();
    for (const CLI::App* command : failed->get_subcommands()) name += " " + command->get_name();
    return name + ": " + error.what() + " (--help lists the flags)\n";
  });
}

}  // namespace outrider
