// Reads from a terminal, with editing and a history by libedit.
#pragma once

#include <histedit.h>

#include <memory>
#include <string>

#include "client/cli/process.h"

namespace outrider {

// For one thread.
class LineEditor {
 public:
  // The history is kept in the file `history`, if that is not empty and can be written.
  LineEditor(std::string prompt, std::string history, Signals& signals);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;

  struct Input {
    std::string text;  // without its last line end; several lines if they came at once, as from a clipboard
    bool end = false;  // nothing more comes
    int signal = 0;    // the signal that came instead; 0: none
  };
  Input Read();

 private:
  static int ReadCharacter(EditLine* editor, wchar_t* to);
  static const char* Prompt(EditLine* editor);
  int NextByte(char* to);

  const std::string prompt_;
  const std::string history_file_;
  Signals& signals_;
  int signal_ = 0;
  bool continues_ = false;  // the next line came with the one before
  std::unique_ptr<EditLine, decltype(&el_end)> editor_;
  std::unique_ptr<History, decltype(&history_end)> history_;
};

}  // namespace outrider
