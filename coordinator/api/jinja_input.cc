#include "coordinator/api/jinja_input.h"

#include <algorithm>

namespace outrider {
namespace {

bool HasInput(const jinja::value& v) {
  const auto is_input = [](const jinja::string_part& part) { return part.is_input; };
  return std::any_of(v->val_str.parts.begin(), v->val_str.parts.end(), is_input) ||
         std::any_of(v->val_arr.begin(), v->val_arr.end(), HasInput) ||
         std::any_of(v->val_obj.begin(), v->val_obj.end(),
                     [](const auto& entry) { return HasInput(entry.second); });
}

}  // namespace

bool IsText(const jinja::value& v) { return jinja::is_val<jinja::value_string>(v); }

void MarkInput(const jinja::value& v) {
  if (IsText(v)) v->val_str.mark_input();
  for (const jinja::value& element : v->val_arr) MarkInput(element);
  for (const auto& [key, element] : v->val_obj) MarkInput(element);
}

void KeepInput(const jinja::value& from, const jinja::value& result) {
  const bool is_list = jinja::is_val<jinja::value_array>(result);
  if ((!IsText(result) && !is_list) || !HasInput(from)) return;
  if (IsText(result) && !HasInput(result)) result->val_str.mark_input();
  for (const jinja::value& element : result->val_arr) {
    if (IsText(element) && !HasInput(element)) element->val_str.mark_input();
  }
}

jinja::string Slice(const jinja::string& text, size_t begin, size_t size) {
  jinja::string slice;
  for (const jinja::string_part& part : text.parts) {
    const size_t skipped = std::min(begin, part.val.size());
    const size_t taken = std::min(size, part.val.size() - skipped);
    if (taken > 0) slice.parts.push_back({part.is_input, part.val.substr(skipped, taken)});
    begin -= skipped;
    size -= taken;
  }
  return slice;
}

}  // namespace outrider
