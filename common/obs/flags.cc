#include "common/obs/flags.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace outrider {
namespace {

bool IsFlag(const std::string& argument) { return absl::StartsWith(argument, "--"); }

// The option of the program, or of one of its commands, that has this name; null: there is none.
const CLI::Option* FindOption(const CLI::App& app, const std::string& name) {
  if (const CLI::Option* option = app.get_option_no_throw(name)) return option;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (const CLI::Option* option = command->get_option_no_throw(name)) return option;
  }
  return nullptr;
}

}  // namespace

void ParseArguments(CLI::App& app, const std::vector<std::string>& arguments) {
  std::vector<std::string> parsed;
  for (auto argument = arguments.begin(); argument != arguments.end() && *argument != "--"; ++argument) {
    const bool is_empty = IsFlag(*argument) && absl::EndsWith(*argument, "=");
    const std::string name = is_empty ? argument->substr(0, argument->size() - 1) : *argument;
    const CLI::Option* option = FindOption(app, name);
    const bool takes_value = option != nullptr && option->get_items_expected_min() > 0;
    const bool is_followed = argument + 1 != arguments.end() && IsFlag(argument[1]);
    if (is_empty && option != nullptr && !takes_value) {
      throw CLI::ArgumentMismatch(absl::StrCat(name, ": true or false must follow the '='"));
    }
    if (!is_empty && IsFlag(name) && takes_value && is_followed) {
      throw CLI::ArgumentMismatch(absl::StrCat(name, ": needs a value, and is followed by ", argument[1]));
    }
    parsed.push_back(name);
    if (is_empty) parsed.emplace_back();
  }
  parsed.insert(parsed.end(), std::find(arguments.begin(), arguments.end(), "--"), arguments.end());
  std::reverse(parsed.begin(), parsed.end());  // as CLI11 has it
  app.parse(std::move(parsed));
}

std::optional<int> ParseCommandLine(CLI::App& app, int argc, const char* const* argv) {
  app.failure_message([](const CLI::App* failed, const CLI::Error& error) {
    std::string name = failed->get_name();
    for (const CLI::App* command : failed->get_subcommands()) name += " " + command->get_name();
    return name + ": " + error.what() + " (--help lists the flags)\n";
  });
  try {
    ParseArguments(app, std::vector<std::string>(argv + 1, argv + argc));
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
  return std::nullopt;
}

}  // namespace outrider
