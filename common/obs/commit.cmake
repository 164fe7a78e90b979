# Writes the header OUTPUT with what git calls the source in ROOT, unless it says so already. Where git does not know, as in
# an archive, the environment's OUTRIDER_COMMIT.
cmake_minimum_required(VERSION 3.24)
execute_process(COMMAND git -C ${ROOT} describe --always --abbrev=12 --dirty=+ --exclude=*
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
  set(commit "$ENV{OUTRIDER_COMMIT}")
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#pragma once\n\ninline constexpr char kCommit[] = \"@commit@\";\n" @ONLY)
