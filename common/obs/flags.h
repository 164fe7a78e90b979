// Command-line conventions of all programs: CLI11, with errors on one line.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

namespace outrider {

// Parses what follows the program's name, with two rules that CLI11 lacks: `--flag=` gives the empty value,
// and a flag that needs a value does not take another flag for it. Throws CLI::ParseError.
void ParseArguments(CLI::App& app, const std::vector<std::string>& arguments);

// A sentence that names the first unknown flag or command and the most similar known one; empty if all are
// known.
std::string UnknownArgument(const CLI::App& app, const std::vector<std::string>& arguments);

// Parses the command line. Returns the exit code if the program ends now, after printing help or an error
// (2); nullopt if it goes on. An error is "PROGRAM [COMMAND]: <what is wrong> (--help lists the flags)".
std::optional<int> ParseCommandLine(CLI::App& app, int argc, const char* const* argv);

}  // namespace outrider
