#include "common/obs/log.h"

#include <spdlog/async.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/spec/status.h"
#include "common/text/json.h"

namespace outrider {
namespace {

constexpr std::pair<absl::string_view, spdlog::level::level_enum> kLevels[] = {
    {"debug", spdlog::level::debug},
    {"info", spdlog::level::info},
    {"warning", spdlog::level::warn},
    {"error", spdlog::level::err},
};

constexpr size_t kMaxTextBytes = 2000;  // of a field

// Written once by InitLog, before other threads exist.
std::string service_name;
bool as_json = true;
std::atomic<int64_t> posted = 0, written = 0, unwritable = 0;

nlohmann::ordered_json ToJson(const LogField& field) {
  if (const auto* text = std::get_if<std::string>(&field.value)) return Excerpt(*text, kMaxTextBytes);
  return std::visit([](const auto& value) { return nlohmann::ordered_json(value); }, field.value);
}

std::string Format(LogLevel level, absl::string_view event, std::initializer_list<LogField> fields) {
  if (!as_json) {
    std::string line(event);
    for (const LogField& field : fields)
      absl::StrAppend(&line, " ", field.name, "=", DumpJson(ToJson(field)));
    return line;
  }
  nlohmann::ordered_json line;
  line["time"] = absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", absl::Now(), absl::UTCTimeZone());  // RFC 3339
  line["level"] = std::string(kLevels[static_cast<int>(level)].first);
  line["service"] = service_name;
  line["event"] = std::string(event);
  for (const LogField& field : fields) line[std::string(field.name)] = ToJson(field);
  return DumpJson(line);
}

// Writes to stderr, on the log's thread, and reports dropped lines.
class Stderr final : public spdlog::sinks::stderr_color_sink_mt {
 public:
  using Sink = spdlog::sinks::stderr_color_sink_mt;

  void log(const spdlog::details::log_msg& message) override {
    if (!Write(message)) {
      ++unwritable;
      return;
    }
    ++written;
    const int64_t dropped = DroppedLogLines();
    if (dropped == reported_) return;
    const std::string line =
        Format(LogLevel::kWarning, "log lines dropped", {{"lines", dropped - reported_}});
    if (Write({message.logger_name, spdlog::level::warn, line})) reported_ = dropped;
  }

 private:
  // Returns false if the message could not be written, as on a full disk.
  bool Write(const spdlog::details::log_msg& message) {
    Sink::log(message);
    const bool failed = std::ferror(stderr) != 0;
    std::clearerr(stderr);
    return !failed;
  }

  int64_t reported_ = 0;
};

}  // namespace

absl::Status InitLog(absl::string_view service, absl::string_view level, absl::string_view format) {
  if (format != "json" && format != "text" && format != "auto") {
    return Invalid("--log-format: '", format, "'; allowed: auto, json, text");
  }
  for (const auto& [name, value] : kLevels) {
    if (level != name) continue;
    service_name = std::string(service);
    as_json = format == "json" || (format == "auto" && isatty(STDERR_FILENO) == 0);
    spdlog::init_thread_pool(kMaxLogLines, 1);
    spdlog::set_default_logger(std::make_shared<spdlog::async_logger>(
        service_name, std::make_shared<Stderr>(), spdlog::thread_pool(),
        spdlog::async_overflow_policy::overrun_oldest));
    spdlog::set_level(value);
    spdlog::flush_on(spdlog::level::debug);
    spdlog::set_pattern(as_json ? "%v" : "%H:%M:%S.%e %^%-7l%$ %n: %v");
    return absl::OkStatus();
  }
  return Invalid("--log-level: '", level, "'; allowed: debug, info, warning, error");
}

bool LogEnabled(LogLevel level) { return spdlog::should_log(kLevels[static_cast<int>(level)].second); }

void Log(LogLevel level, absl::string_view event, std::initializer_list<LogField> fields) {
  const spdlog::level::level_enum value = kLevels[static_cast<int>(level)].second;
  if (!spdlog::should_log(value)) return;
  ++posted;
  spdlog::log(value, "{}", Format(level, event, fields));
}

void LogException(absl::string_view event, const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const std::exception& error) {
    LogError(event, {{"error", error.what()}});
  } catch (...) {
    LogError(event, {{"error", "not a std::exception"}});
  }
}

int64_t DroppedLogLines() {
  const auto pool = spdlog::thread_pool();
  return unwritable + (pool == nullptr ? 0 : static_cast<int64_t>(pool->overrun_counter()));
}

void FlushLog() {
  constexpr std::chrono::milliseconds kStep{1};
  for (int i = 0; i < 1000 && written + DroppedLogLines() < posted; ++i) std::this_thread::sleep_for(kStep);
}

}  // namespace outrider
