#include "common/obs/trace_options.h"

#include <algorithm>
#include <type_traits>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/rpc/address.h"
#include "common/spec/status.h"
#include "common/text/percent.h"

namespace outrider {
namespace {

// Reads variables by the specification's rules: one for traces takes precedence over one for all signals.
class Variables {
 public:
  explicit Variables(const std::function<std::string(const std::string&)>& variable) : variable_(variable) {}

  std::string Get(const std::string& name) const {
    return std::string(absl::StripAsciiWhitespace(variable_(name)));
  }
  // The value of an exporter's variable. Sets *name to the variable that has it.
  std::string Otlp(const std::string& what, std::string* name = nullptr) const {
    for (const char* signal : {"TRACES_", ""}) {
      const std::string full = absl::StrCat("OTEL_EXPORTER_OTLP_", signal, what);
      if (name != nullptr) *name = full;
      if (std::string value = Get(full); !value.empty()) return value;
    }
    return "";
  }
  static bool IsTrue(const std::string& value) { return absl::EqualsIgnoreCase(value, "true"); }

  // Parses KEY=VALUE,KEY=VALUE with percent-encoded values.
  static absl::Status ReadList(const std::string& name, const std::string& text,
                               std::vector<std::pair<std::string, std::string>>& list) {
    for (const absl::string_view entry : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
      const std::pair<absl::string_view, absl::string_view> parts =
          absl::StrSplit(entry, absl::MaxSplits('=', 1));
      const absl::string_view key = absl::StripAsciiWhitespace(parts.first);
      if (key.empty() || key == absl::StripAsciiWhitespace(entry))
        return Invalid(name, ": not of the form KEY=VALUE,...");
      list.emplace_back(key, PercentDecoded(absl::StripAsciiWhitespace(parts.second)));
    }
    return absl::OkStatus();
  }
  // Reads a number that is at least `least`. Leaves `value` unchanged if the variable is not set.
  template <typename Number>
  absl::Status ReadNumber(const std::string& name, int64_t least, Number& value) const {
    const std::string text = Get(name);
    if (text.empty()) return absl::OkStatus();
    int64_t number = 0;
    if (!absl::SimpleAtoi(text, &number) || number < least || number > 1'000'000'000) {
      return Invalid(name, ": ", text, "; allowed: ", least, " to 1000000000");
    }
    if constexpr (std::is_same_v<Number, absl::Duration>) {
      value = absl::Milliseconds(number);
    } else {
      value = static_cast<Number>(number);
    }
    return absl::OkStatus();
  }

 private:
  const std::function<std::string(const std::string&)>& variable_;
};

absl::Status ReadEndpoint(const Variables& variables, TraceOptions& options) {
  std::string name;
  absl::string_view endpoint = options.endpoint = variables.Otlp("ENDPOINT", &name);
  if (absl::ConsumePrefix(&endpoint, "https://")) {
    options.tls = true;
  } else if (!absl::ConsumePrefix(&endpoint, "http://")) {
    options.tls = !Variables::IsTrue(variables.Otlp("INSECURE"));
  }
  absl::ConsumeSuffix(&endpoint, "/");
  if (!ParseHostPort(endpoint))
    return Invalid(name, ": ", options.endpoint, " is not of the form http://HOST:PORT");
  options.endpoint = std::string(endpoint);
  options.certificate = variables.Otlp("CERTIFICATE");
  options.client_certificate = variables.Otlp("CLIENT_CERTIFICATE");
  options.client_key = variables.Otlp("CLIENT_KEY");
  if (const std::string protocol = variables.Otlp("PROTOCOL", &name);
      !protocol.empty() && protocol != "grpc") {
    return Invalid(name, ": ", protocol, "; allowed: grpc");
  }
  const std::string compression = variables.Otlp("COMPRESSION", &name);
  options.gzip = compression == "gzip";
  if (!compression.empty() && compression != "none" && !options.gzip) {
    return Invalid(name, ": ", compression, "; allowed: gzip, none");
  }
  const std::string headers = variables.Otlp("HEADERS", &name);
  OUTRIDER_TRY(Variables::ReadList(name, headers, options.headers));
  for (auto& [key, value] : options.headers) absl::AsciiStrToLower(&key);
  variables.Otlp("TIMEOUT", &name);
  return variables.ReadNumber(name, 1, options.timeout);
}

absl::Status ReadSampler(const Variables& variables, TraceOptions& options) {
  const std::string name = "OTEL_TRACES_SAMPLER", sampler = variables.Get(name);
  absl::string_view rule = sampler;
  if (rule.empty()) rule = "parentbased_always_on";
  options.follows_parent = absl::ConsumePrefix(&rule, "parentbased_");
  if (rule == "always_on") return absl::OkStatus();
  if (rule != "always_off" && rule != "traceidratio") {
    return Invalid(name, ": ", sampler,
                   "; allowed: always_on, always_off, traceidratio, each also after parentbased_");
  }
  options.roots = rule == "always_off" ? TraceOptions::Roots::kNone : TraceOptions::Roots::kRatio;
  const std::string ratio = variables.Get("OTEL_TRACES_SAMPLER_ARG");
  if (ratio.empty() ||
      (absl::SimpleAtod(ratio, &options.ratio) && options.ratio >= 0 && options.ratio <= 1)) {
    return absl::OkStatus();
  }
  return Invalid("OTEL_TRACES_SAMPLER_ARG: ", ratio, "; allowed: 0 to 1");
}

}  // namespace

absl::StatusOr<std::optional<TraceOptions>> ReadTraceOptions(
    const std::string& service, const std::function<std::string(const std::string&)>& variable) {
  const Variables variables(variable);
  const std::string exporter = variables.Get("OTEL_TRACES_EXPORTER");
  if (Variables::IsTrue(variables.Get("OTEL_SDK_DISABLED")) || exporter == "none" ||
      variables.Otlp("ENDPOINT").empty()) {
    return std::nullopt;
  }
  if (!exporter.empty() && exporter != "otlp")
    return Invalid("OTEL_TRACES_EXPORTER: ", exporter, "; allowed: otlp, none");
  TraceOptions options;
  OUTRIDER_TRY(ReadEndpoint(variables, options));
  OUTRIDER_TRY(ReadSampler(variables, options));
  OUTRIDER_TRY(variables.ReadNumber("OTEL_BSP_SCHEDULE_DELAY", 1, options.delay));
  OUTRIDER_TRY(variables.ReadNumber("OTEL_BSP_MAX_QUEUE_SIZE", 1, options.max_queue));
  OUTRIDER_TRY(variables.ReadNumber("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 1, options.max_batch));
  const std::string list = "OTEL_RESOURCE_ATTRIBUTES";
  OUTRIDER_TRY(Variables::ReadList(list, variables.Get(list), options.resource));
  const std::string name = variables.Get("OTEL_SERVICE_NAME");
  const auto is_name = [](const auto& attribute) { return attribute.first == "service.name"; };
  if (!name.empty()) std::erase_if(options.resource, is_name);
  if (std::ranges::none_of(options.resource, is_name)) {
    options.resource.emplace_back("service.name", name.empty() ? service : name);
  }
  return options;
}

}  // namespace outrider
