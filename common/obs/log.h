// Structured logs on stderr: one JSON object per line and event, or readable text on a terminal.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace outrider {

// A named value of an event. `name` must outlive it.
struct LogField {
  LogField(absl::string_view name, absl::string_view text) : name(name), value(std::string(text)) {}
  LogField(absl::string_view name, const char* text) : name(name), value(std::string(text)) {}
  LogField(absl::string_view name, const std::string& text) : name(name), value(text) {}
  LogField(absl::string_view name, double number) : name(name), value(number) {}
  LogField(absl::string_view name, bool flag) : name(name), value(flag) {}
  template <std::integral Integer>
  LogField(absl::string_view name, Integer number) : name(name), value(static_cast<int64_t>(number)) {}

  absl::string_view name;
  std::variant<std::string, double, int64_t, bool> value;
};

inline constexpr size_t kMaxLogLines = 4096;

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Call once, before any other function here and before starting threads. `format` is "json", "text" or
// "auto", which is text if stderr is a terminal. `level` is "debug", "info", "warning" or "error".
// INVALID_ARGUMENT, naming the flag, for anything else.
absl::Status InitLog(absl::string_view service, absl::string_view level, absl::string_view format);

// Writes one event. Thread-safe. `event` is a short constant phrase; variable parts go into fields, whose
// long texts are cut. After InitLog, never waits for the log's reader: if more than kMaxLogLines lines are
// unwritten, the oldest are dropped, as are lines that cannot be written. A later line says how many.
void Log(LogLevel level, absl::string_view event, std::initializer_list<LogField> fields = {});

// The number of lines dropped so far.
int64_t DroppedLogLines();

// Call before the process ends. Waits until all events are written, for at most a second.
void FlushLog();

// Whether events of this level are written, for callers whose fields are expensive.
bool LogEnabled(LogLevel level);

inline void LogDebug(absl::string_view event, std::initializer_list<LogField> fields = {}) {
  Log(LogLevel::kDebug, event, fields);
}
inline void LogInfo(absl::string_view event, std::initializer_list<LogField> fields = {}) {
  Log(LogLevel::kInfo, event, fields);
}
inline void LogWarning(absl::string_view event, std::initializer_list<LogField> fields = {}) {
  Log(LogLevel::kWarning, event, fields);
}
inline void LogError(absl::string_view event, std::initializer_list<LogField> fields = {}) {
  Log(LogLevel::kError, event, fields);
}

// Logs the message of an exception as an error.
void LogException(absl::string_view event, const std::exception_ptr& exception);

}  // namespace outrider
