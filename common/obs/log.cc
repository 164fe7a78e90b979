#include "common/obs/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace outrider {
namespace {

constexpr std::pair<absl::string_view, spdlog::level::level_enum> kLevels[] = {
    {"debug", spdlog::level::debug},
    {"info", spdlog::level::info},
    {"warning", spdlog::level::warn},
    {"error", spdlog::level::err},
};

// Written once by InitLog, before other threads exist.
std::string service_name;
bool as_json = true;

// Replaces invalid UTF-8, which must not keep a line from being written.
std::string Dump(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

nlohmann::ordered_json ToJson(const LogField& field) {
  return std::visit([](const auto& value) { return nlohmann::ordered_json(value); }, field.value);
}

}  // namespace

absl::Status InitLog(absl::string_view service, absl::string_view level, absl::string_view format) {
  if (format != "json" && format != "text" && format != "auto") {
    return absl::InvalidArgumentError(
        absl::StrCat("--log-format: '", format, "'; allowed: auto, json, text"));
  }
  for (const auto& [name, value] : kLevels) {
    if (level != name) continue;
    service_name = std::string(service);
    as_json = format == "json" || (format == "auto" && isatty(STDERR_FILENO) == 0);
    spdlog::set_default_logger(spdlog::stderr_color_mt(service_name));
    spdlog::set_level(value);
    spdlog::flush_on(spdlog::level::debug);
    spdlog::set_pattern(as_json ? "%v" : "%H:%M:%S.%e %^%-7l%$ %n: %v");
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--log-level: '", level, "'; allowed: debug, info, warning, error"));
}

bool LogEnabled(LogLevel level) { return spdlog::should_log(kLevels[static_cast<int>(level)].second); }

void Log(LogLevel level, absl::string_view event, std::initializer_list<LogField> fields) {
  const auto& [name, value] = kLevels[static_cast<int>(level)];
  if (!spdlog::should_log(value)) return;
  if (!as_json) {
    std::string line(event);
    for (const LogField& field : fields) absl::StrAppend(&line, " ", field.name, "=", Dump(ToJson(field)));
    spdlog::log(value, "{}", line);
    return;
  }
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  nlohmann::ordered_json line;
  line["time"] = static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec / 1000);
  line["level"] = std::string(name);
  line["service"] = service_name;
  line["event"] = std::string(event);
  for (const LogField& field : fields) line[std::string(field.name)] = ToJson(field);
  spdlog::log(value, "{}", Dump(line));
}

}  // namespace outrider
