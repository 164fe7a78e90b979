# outrider_precompile(NAME HEADERS ... LIBS ...) precompiles headers of installed libraries. The libraries and programs
# defined after it, until the next call, use the result, so their compile options must not differ.
# Files still include what they use: -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON builds without precompiled headers.
function(outrider_precompile name)
  cmake_parse_arguments(ARG "" "" "HEADERS;LIBS" ${ARGN})
  file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/${name}.cc CONTENT "")
  add_library(outrider_${name} OBJECT ${CMAKE_CURRENT_BINARY_DIR}/${name}.cc)
  target_link_libraries(outrider_${name} PRIVATE ${ARG_LIBS})
  target_precompile_headers(outrider_${name} PRIVATE ${ARG_HEADERS})
  set(OUTRIDER_PRECOMPILED outrider_${name} PARENT_SCOPE)
endfunction()

# outrider_library(NAME SOURCES ... [PUBLIC ...] [PRIVATE ...]) makes the static library outrider_NAME with
# the alias outrider::NAME. Headers are included by their path from the repository's root.
function(outrider_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(outrider_${name} STATIC ${ARG_SOURCES})
  add_library(outrider::${name} ALIAS outrider_${name})
  target_include_directories(outrider_${name} PUBLIC $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}>)
  target_link_libraries(outrider_${name} PUBLIC ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE})
  target_precompile_headers(outrider_${name} REUSE_FROM ${OUTRIDER_PRECOMPILED})
endfunction()

# outrider_program(NAME SOURCES ... LIBS ...) makes an executable.
function(outrider_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LIBS})
  target_precompile_headers(${name} REUSE_FROM ${OUTRIDER_PRECOMPILED})
endfunction()

# outrider_find_sources(NAME FOLDER HEADER) helps modules that find sources unpacked by scripts/install. The sources are found if
# FOLDER contains HEADER; FOLDER becomes NAME_INCLUDE_DIR.
macro(outrider_find_sources name folder header)
  if(EXISTS ${folder}/${header})
    set(${name}_INCLUDE_DIR ${folder})
  endif()
  include(FindPackageHandleStandardArgs)
  find_package_handle_standard_args(${name} REQUIRED_VARS ${name}_INCLUDE_DIR
    REASON_FAILURE_MESSAGE "no ${name} in ${OUTRIDER_VENV}: run 'make install'")
endmacro()
