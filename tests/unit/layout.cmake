# The rules of the tree itself (order of folders, code without protobuf, nothing unfinished), which need no build.
add_test(NAME layout_test
  COMMAND ${OUTRIDER_VENV}/bin/python -m pytest -q -p no:cacheprovider ${CMAKE_CURRENT_SOURCE_DIR}/unit/layout_test.py
  WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
set_tests_properties(layout_test PROPERTIES LABELS unit)

# The patches of tests/mutants, as far as they can be checked without a build.
add_test(NAME mutants_test
  COMMAND ${OUTRIDER_VENV}/bin/python -m pytest -q -p no:cacheprovider ${CMAKE_CURRENT_SOURCE_DIR}/unit/mutants_test.py
  WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
set_tests_properties(mutants_test PROPERTIES LABELS unit ENVIRONMENT PYTHONDONTWRITEBYTECODE=1)

# How the programs are compiled and linked.
add_test(NAME hardening_test
  COMMAND ${OUTRIDER_VENV}/bin/python -m pytest -q -p no:cacheprovider ${CMAKE_CURRENT_SOURCE_DIR}/unit/hardening_test.py
  WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
set_tests_properties(hardening_test PROPERTIES
  LABELS unit ENVIRONMENT "OUTRIDER_BIN=${CMAKE_RUNTIME_OUTPUT_DIRECTORY};PYTHONDONTWRITEBYTECODE=1")

# The libraries that the plug-in on libtorch links to.
add_test(NAME torch_plugin_test
  COMMAND ${OUTRIDER_VENV}/bin/python -m pytest -q -p no:cacheprovider ${CMAKE_CURRENT_SOURCE_DIR}/unit/torch_plugin_test.py
  WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
set_tests_properties(torch_plugin_test PROPERTIES
  LABELS unit ENVIRONMENT "OUTRIDER_BIN=${CMAKE_RUNTIME_OUTPUT_DIRECTORY};PYTHONDONTWRITEBYTECODE=1")

# compare_test: bench/compare.py when a system fails. papers_test: the formulas of bench/papers.py. sizes_test: the figures of docs/sizing.md.
foreach(name IN ITEMS compare_test papers_test sizes_test)
  add_test(NAME ${name}
    COMMAND ${OUTRIDER_VENV}/bin/python -m pytest -q -p no:cacheprovider ${CMAKE_CURRENT_SOURCE_DIR}/unit/${name}.py
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES LABELS unit ENVIRONMENT PYTHONDONTWRITEBYTECODE=1)
endforeach()
