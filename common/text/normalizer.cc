#include "common/text/normalizer.h"

#include <utf8proc.h>

#include <cstdlib>

#include "absl/strings/str_replace.h"
#include "common/text/strings.h"

namespace outrider {
namespace {

// Unicode's normalization form C.
std::string Composed(const std::string& text) {
  utf8proc_uint8_t* composed = nullptr;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                             static_cast<utf8proc_ssize_t>(text.size()), &composed, options);
  // It refuses ill-formed text only, which does not come here.
  std::string result =
      size < 0 ? text : std::string(reinterpret_cast<const char*>(composed), static_cast<size_t>(size));
  std::free(composed);
  return result;
}

}  // namespace

std::string Normalizer::Normalize(std::string_view text) const {
  std::string result(text);
  for (const NormalizeStep& step : steps_) {
    if (result.empty()) break;
    switch (step.kind) {
      case NormalizeStep::Kind::kNfc:
        result = Composed(result);
        break;
      case NormalizeStep::Kind::kPrepend:
        result = Concat(step.content, result);
        break;
      case NormalizeStep::Kind::kReplace:
        result = absl::StrReplaceAll(result, {{step.pattern, step.content}});
        break;
    }
  }
  return result;
}

}  // namespace outrider
