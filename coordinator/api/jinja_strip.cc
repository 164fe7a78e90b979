#include "coordinator/api/jinja_strip.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "common/text/utf8.h"

namespace outrider {
namespace {

// The characters that str.isspace is true of.
constexpr std::string_view kWhiteSpace[] = {
    "\t",           "\n",           "\v",           "\f",           "\r",
    "\x1c",         "\x1d",         "\x1e",         "\x1f",         " ",
    "\xc2\x85",     "\xc2\xa0",     "\xe1\x9a\x80", "\xe2\x80\x80", "\xe2\x80\x81",
    "\xe2\x80\x82", "\xe2\x80\x83", "\xe2\x80\x84", "\xe2\x80\x85", "\xe2\x80\x86",
    "\xe2\x80\x87", "\xe2\x80\x88", "\xe2\x80\x89", "\xe2\x80\x8a", "\xe2\x80\xa8",
    "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f", "\xe3\x80\x80"};

size_t LastCharacterSize(std::string_view text) {
  size_t size = 1;
  while (size < text.size() && (static_cast<unsigned char>(text[text.size() - size]) & 0xC0) == 0x80) ++size;
  return size;
}

// A whole character never begins in the middle of another one in UTF-8.
bool IsStripped(std::string_view character, std::optional<std::string_view> characters) {
  if (characters) return characters->find(character) != characters->npos;
  return std::find(std::begin(kWhiteSpace), std::end(kWhiteSpace), character) != std::end(kWhiteSpace);
}

}  // namespace

std::string_view Strip(std::string_view text, StripEnds ends, std::optional<std::string_view> characters) {
  while (ends != StripEnds::kRight && !text.empty()) {
    const std::string_view first = text.substr(0, CharacterSize(text));
    if (!IsStripped(first, characters)) break;
    text.remove_prefix(first.size());
  }
  while (ends != StripEnds::kLeft && !text.empty()) {
    const std::string_view last = text.substr(text.size() - LastCharacterSize(text));
    if (!IsStripped(last, characters)) break;
    text.remove_suffix(last.size());
  }
  return text;
}

}  // namespace outrider
