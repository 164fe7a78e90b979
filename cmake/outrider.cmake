# outrider_library(NAME SOURCES ... [PUBLIC ...] [PRIVATE ...]) makes the static library outrider_NAME with
# the alias outrider::NAME. Headers are included by their path from the repository's root.
function(outrider_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(outrider_${name} STATIC ${ARG_SOURCES})
  add_library(outrider::${name} ALIAS outrider_${name})
  target_include_directories(outrider_${name} PUBLIC $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}>)
  target_link_libraries(outrider_${name} PUBLIC ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE})
endfunction()
