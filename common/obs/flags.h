// Command-line conventions of all programs: CLI11, with errors on one line.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

namespace outrider {

inline constexpr int kUsageError = 2;  // exit status

// Parses what follows the program's name, with two rules that CLI11 lacks: `--flag=` gives the empty value,
// and a flag that needs a value does not take another flag for it. Throws CLI::ParseError.
void ParseArguments(CLI::App& app, const std::vector<std::string>& arguments);

// A sentence that names the first unknown flag or command and the most similar known one; empty if all are
// known.
std::string UnknownArgument(const CLI::App& app, const std::vector<std::string>& arguments);

// The arguments, after values that the environment has of other flags of the program and of the command that
// they name: OUTRIDER_LOG_LEVEL is for --log-level.
std::vector<std::string> WithEnvironment(const CLI::App& app, const std::vector<std::string>& arguments);

// Parses the command line, with what the environment and the file of --config say of flags that it lacks; the
// environment comes first. Returns the exit status if the program ends now, after printing help or an
// error (kUsageError); nullopt if it goes on. An error is "PROGRAM [COMMAND]: <what is wrong> (--help lists
// the flags)".
std::optional<int> ParseCommandLine(CLI::App& app, int argc, const char* const* argv);

}  // namespace outrider
