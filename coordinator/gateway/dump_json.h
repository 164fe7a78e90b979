// JSON as it is sent.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace outrider {

// On one line. Parts of characters, which texts of tokens may be, become U+FFFD.
inline std::string DumpJson(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace outrider
