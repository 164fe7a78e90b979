// Command-line conventions of all programs: CLI11, with errors on one line.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

namespace outrider {

inline constexpr int kUsageError = 2;  // exit status

// Parses the arguments after the program's name, with two rules that CLI11 lacks: `--flag=` sets the empty
// value, and a flag that needs a value does not take another flag as its value. Throws CLI::ParseError.
void ParseArguments(CLI::App& app, const std::vector<std::string>& arguments);

// A sentence that names the first unknown flag or command and the most similar known one; empty if all are
// known.
std::string UnknownArgument(const CLI::App& app, const std::vector<std::string>& arguments);

// The arguments, after the flags that the environment sets and they do not: OUTRIDER_LOG_LEVEL sets
// --log-level. Looks at the flags of the program and of the command that the arguments name.
std::vector<std::string> WithEnvironment(const CLI::App& app, const std::vector<std::string>& arguments);

// Parses the command line. Flags that it lacks are taken from the environment, or else from the file of
// --config. Returns the exit status if the program ends now, after printing help, the configuration or an
// error (kUsageError); nullopt if it goes on. An error is "PROGRAM [COMMAND]: <what is wrong> (--help lists
// the flags)".
std::optional<int> ParseCommandLine(CLI::App& app, int argc, const char* const* argv);

}  // namespace outrider
