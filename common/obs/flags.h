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

// The sentence that names the first flag or command that the program does not have, and the most similar one
// that it has; empty if it has all.
std::string UnknownArgument(const CLI::App& app, const std::vector<std::string>& arguments);

// Parses the command line. Returns what the program ends with now, after it has printed help, or an error,
// for which it is 2; nullopt: it goes on. An error is "PROGRAM [COMMAND]: <what is wrong> (--help lists the
// flags)".
std::optional<int> ParseCommandLine(CLI::App& app, int argc, const char* const* argv);

}  // namespace outrider
