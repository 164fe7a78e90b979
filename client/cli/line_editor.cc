#include "client/cli/line_editor.h"

#include <locale.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cwchar>
#include <filesystem>
#include <string_view>

namespace outrider {
namespace {

constexpr int kHistoryLines = 1000;
// Lines that come this fast are pasted from a clipboard, not typed.
constexpr absl::Duration kPasted = absl::Milliseconds(20);

LineEditor& OfClient(EditLine* editor) {
  void* self = nullptr;
  el_get(editor, EL_CLIENTDATA, &self);
  return *static_cast<LineEditor*>(self);
}

}  // namespace

LineEditor::LineEditor(std::string prompt, std::string history, Signals& signals)
    : prompt_(std::move(prompt)),
      history_file_(std::move(history)),
      signals_(signals),
      editor_(nullptr, el_end),
      history_(history_init(), history_end) {
  // libedit reads characters in the locale's encoding.
  setlocale(LC_CTYPE, "");
  if (std::string_view(setlocale(LC_CTYPE, nullptr)) == "C") setlocale(LC_CTYPE, "C.UTF-8");
  editor_.reset(el_init("outrider", stdin, stdout, stderr));
  EditLine* const editor = editor_.get();
  el_set(editor, EL_CLIENTDATA, this);
  el_set(editor, EL_EDITOR, "emacs");
  el_set(editor, EL_PROMPT, &Prompt);
  el_set(editor, EL_GETCFN, &ReadCharacter);
  el_set(editor, EL_SIGNAL, 0);
  el_set(editor, EL_BIND, "^R", "em-inc-search-prev", nullptr);
  HistEvent ignored;
  ::history(history_.get(), &ignored, H_SETSIZE, kHistoryLines);
  ::history(history_.get(), &ignored, H_SETUNIQUE, 1);
  if (!history_file_.empty()) ::history(history_.get(), &ignored, H_LOAD, history_file_.c_str());
  el_set(editor, EL_HIST, ::history, history_.get());
  el_source(editor, nullptr);  // ~/.editrc
}

LineEditor::~LineEditor() {
  if (history_file_.empty()) return;
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(history_file_).parent_path(), ignored);
  const mode_t before = umask(077);
  HistEvent event;
  ::history(history_.get(), &event, H_SAVE, history_file_.c_str());
  umask(before);
}

const char* LineEditor::Prompt(EditLine* editor) {
  const LineEditor& self = OfClient(editor);
  return self.continues_ ? "" : self.prompt_.c_str();
}

LineEditor::Input LineEditor::Read() {
  Input input;
  signal_ = 0;
  do {
    continues_ = !input.text.empty();
    int length = 0;
    const char* const line = el_gets(editor_.get(), &length);
    if (signal_ != 0) return {"", false, signal_};
    if (line == nullptr || length <= 0) {
      input.end = input.text.empty();
      break;
    }
    input.text.append(line, static_cast<size_t>(length));
    signals_.Wait(kPasted, STDIN_FILENO);
  } while (HasInput(STDIN_FILENO));
  if (!input.text.empty() && input.text.back() == '\n') input.text.pop_back();
  if (!input.text.empty()) {
    HistEvent ignored;
    ::history(history_.get(), &ignored, H_ENTER, input.text.c_str());
  }
  return input;
}

// The number of bytes that were read: 0 at the end, or after a signal.
int LineEditor::NextByte(char* to) {
  while (!HasInput(STDIN_FILENO)) {
    signal_ = signals_.Wait(absl::InfiniteDuration(), STDIN_FILENO);
    if (Signals::IsStop(signal_)) return 0;
  }
  signal_ = 0;
  return static_cast<int>(read(STDIN_FILENO, to, 1));
}

int LineEditor::ReadCharacter(EditLine* editor, wchar_t* to) {
  LineEditor& self = OfClient(editor);
  std::mbstate_t state{};
  char byte = 0;
  while (self.NextByte(&byte) == 1) {
    const size_t used = std::mbrtowc(to, &byte, 1, &state);
    if (used == static_cast<size_t>(-2)) continue;  // more bytes belong to it
    if (used != static_cast<size_t>(-1)) return 1;
    *to = L'\uFFFD';
    return 1;
  }
  return 0;
}

}  // namespace outrider
