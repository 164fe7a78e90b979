#include "common/obs/flags.h"

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <numeric>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

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

// The least number of characters to insert, delete or change that makes `a` equal `b` (Levenshtein).
size_t Distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

std::string Unknown(const char* kind, const std::string& name, const std::vector<std::string>& known) {
  std::string sentence = absl::StrCat("there is no ", kind, " ", name);
  const auto nearest = std::ranges::min_element(
      known, [&](const auto& a, const auto& b) { return Distance(name, a) < Distance(name, b); });
  if (nearest == known.end() || Distance(name, *nearest) > name.size() / 2) return sentence;
  return absl::StrCat(sentence, "; did you mean ", *nearest, "?");
}

// Shows a flag's type, range and default, but not the flags that it excludes or needs. Puts one empty line
// between groups.
class FlagFormatter final : public CLI::Formatter {
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    return absl::StrReplaceAll(CLI::Formatter::make_help(app, std::move(name), mode), {{"\n\n\n", "\n\n"}});
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_type_size() == 0) return "";
    // The name is TYPE or TYPE:VALIDATOR. A combination of validators is not readable, so it is left out.
    std::string type = option->get_type_name();
    if (const size_t colon = type.find(':'); colon != std::string::npos) {
      type = type[colon + 1] == '(' ? type.substr(0, colon) : type.substr(colon + 1);
    }
    std::string text = absl::StrCat(" ", type);
    if (!option->get_default_str().empty()) absl::StrAppend(&text, "=", option->get_default_str());
    if (option->get_required()) absl::StrAppend(&text, ", required");
    return text;
  }
};

// The environment variable of a flag: OUTRIDER_LOG_LEVEL for --log-level.
std::string VariableOf(const std::string& flag) {
  return "OUTRIDER_" + absl::AsciiStrToUpper(absl::StrReplaceAll(flag.substr(2), {{"-", "_"}}));
}

}  // namespace

std::string UnknownArgument(const CLI::App& app, const std::vector<std::string>& arguments) {
  const auto everything = [](const CLI::App*) { return true; };
  std::vector<std::string> commands, flags;
  for (const CLI::App* command : app.get_subcommands(everything)) commands.push_back(command->get_name());
  const auto add_flags = [&flags](const CLI::App& of) {
    for (const CLI::Option* option : of.get_options()) {
      for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
    }
  };
  add_flags(app);
  for (const CLI::App* command : app.get_subcommands(everything)) {
    if (command->parsed() || app.get_subcommands().empty()) add_flags(*command);
  }
  for (size_t i = 0; i < arguments.size() && arguments[i] != "--"; ++i) {
    const std::string name = arguments[i].substr(0, arguments[i].find('='));
    if (IsFlag(name)) {
      if (FindOption(app, name) == nullptr) return Unknown("flag", name, flags);
    } else if (i == 0 && !commands.empty() &&
               std::find(commands.begin(), commands.end(), name) == commands.end()) {
      return Unknown("command", name, commands);
    }
  }
  return "";
}

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
  std::ranges::reverse(parsed);  // as CLI11 expects
  app.parse(std::move(parsed));
}

std::vector<std::string> WithEnvironment(const CLI::App& app, const std::vector<std::string>& arguments) {
  const auto is_given = [&arguments](const std::string& flag) {
    return std::ranges::any_of(arguments, [&flag](const std::string& argument) {
      return argument == flag || absl::StartsWith(argument, flag + "=");
    });
  };
  std::vector<std::string> all;
  const auto add = [&](const CLI::App& of) {
    for (const CLI::Option* option : of.get_options()) {
      if (option->get_lnames().empty()) continue;
      const std::string flag = "--" + option->get_lnames().front();
      const char* const value = std::getenv(VariableOf(flag).c_str());
      if (value != nullptr && !is_given(flag)) all.push_back(absl::StrCat(flag, "=", value));
    }
  };
  add(app);
  const auto is_named = [&arguments](const CLI::App* command) {
    return !arguments.empty() && arguments[0] == command->get_name();
  };
  const std::vector<const CLI::App*> commands = app.get_subcommands(is_named);
  for (const CLI::App* command : commands) {
    all.push_back(command->get_name());
    add(*command);
  }
  all.insert(all.end(), arguments.begin() + static_cast<std::ptrdiff_t>(commands.size()), arguments.end());
  return all;
}

std::optional<int> ParseCommandLine(CLI::App& app, int argc, const char* const* argv) {
  bool prints_config = false;
  app.option_defaults()->group("Options");
  app.set_config("--config", "", "TOML file with values of flags; a command has a table of its own")
      ->type_name("FILE");
  app.allow_config_extras(CLI::config_extras_mode::error);
  app.add_flag("--print-config", prints_config, "print the values of all flags as such a file, and end")
      ->configurable(false);
  const auto formatter = std::make_shared<FlagFormatter>();
  app.formatter(formatter);
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    command->fallthrough();
    command->formatter(formatter);
  }
  const std::vector<std::string> arguments = WithEnvironment(app, {argv + 1, argv + argc});
  app.failure_message([&](const CLI::App* failed, const CLI::Error& error) {
    std::string name = failed->get_name();
    for (const CLI::App* command : failed->get_subcommands()) name += " " + command->get_name();
    const std::string unknown = UnknownArgument(app, arguments);
    return name + ": " + (unknown.empty() ? error.what() : unknown) + " (--help lists the flags)\n";
  });
  try {
    ParseArguments(app, arguments);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsageError;
  }
  if (!prints_config) return std::nullopt;
  // CLI11 writes an empty value for a flag without value or default, which may be rejected when it is read.
  std::string config = "\n" + app.config_to_str(/*default_also=*/true);
  const auto leave_out = [&config](const CLI::App& of, const std::string& prefix) {
    for (const CLI::Option* option : of.get_options()) {
      const std::string line = absl::StrCat("\n", prefix, option->get_single_name(), "=\"\"\n");
      if (option->count() == 0) absl::StrReplaceAll({{line, "\n"}}, &config);
    }
  };
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    leave_out(*command, command->get_name() + ".");
  }
  leave_out(app, "");
  std::cout << config.substr(1);
  return 0;
}

}  // namespace outrider
