// Names of the protocol's enumeration values in flags, metrics, answers and errors. Those of drafters are in
// drafters.h.
#pragma once

#include <string>

#include "absl/strings/ascii.h"
#include "outrider/v1/inference.pb.h"

namespace outrider {

// Strips `prefix` and lowers the case: "TOKEN_KIND_BONUS" becomes "bonus". A value without a name becomes its
// number.
inline std::string NameWithoutPrefix(const char* prefix, const std::string& name, int value) {
  if (name.empty()) return std::to_string(value);
  return absl::AsciiStrToLower(name.substr(std::string(prefix).size()));
}

inline std::string NameOf(v1::Rule rule) { return NameWithoutPrefix("RULE_", v1::Rule_Name(rule), rule); }
inline std::string NameOf(v1::Schedule schedule) {
  return NameWithoutPrefix("SCHEDULE_", v1::Schedule_Name(schedule), schedule);
}
inline std::string NameOf(v1::SiblingOrder order) {
  return NameWithoutPrefix("SIBLING_ORDER_", v1::SiblingOrder_Name(order), order);
}
inline std::string NameOf(v1::TokenKind kind) {
  return NameWithoutPrefix("TOKEN_KIND_", v1::TokenKind_Name(kind), kind);
}
inline std::string NameOf(v1::FinishReason reason) {
  return NameWithoutPrefix("FINISH_REASON_", v1::FinishReason_Name(reason), reason);
}

// The value with that name; UNSPECIFIED if there is none.
inline v1::Rule RuleFromName(const std::string& name) {
  v1::Rule rule = v1::RULE_UNSPECIFIED;
  v1::Rule_Parse("RULE_" + absl::AsciiStrToUpper(name), &rule);
  return rule;
}
inline v1::Schedule ScheduleFromName(const std::string& name) {
  v1::Schedule schedule = v1::SCHEDULE_UNSPECIFIED;
  v1::Schedule_Parse("SCHEDULE_" + absl::AsciiStrToUpper(name), &schedule);
  return schedule;
}
inline v1::SiblingOrder SiblingOrderFromName(const std::string& name) {
  v1::SiblingOrder order = v1::SIBLING_ORDER_UNSPECIFIED;
  v1::SiblingOrder_Parse("SIBLING_ORDER_" + absl::AsciiStrToUpper(name), &order);
  return order;
}
inline v1::BeamStop BeamStopFromName(const std::string& name) {
  v1::BeamStop stop = v1::BEAM_STOP_UNSPECIFIED;
  v1::BeamStop_Parse("BEAM_STOP_" + absl::AsciiStrToUpper(name), &stop);
  return stop;
}

}  // namespace outrider
