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

# bench/compare.py when a system fails.
add_test(NAME compare_test
  COMMAND ${OUTRIDER_VENV}/bin/python -m pytest -q -p no:cacheprovider ${CMAKE_CURRENT_SOURCE_DIR}/unit/compare_test.py
  WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
set_tests_properties(compare_test PROPERTIES LABELS unit ENVIRONMENT PYTHONDONTWRITEBYTECODE=1)

# The figures of docs/sizing.md.
add_test(NAME sizes_test
  COMMAND ${OUTRIDER_VENV}/bin/python -m pytest -q -p no:cacheprovider ${CMAKE_CURRENT_SOURCE_DIR}/unit/sizes_test.py
  WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
set_tests_properties(sizes_test PROPERTIES LABELS unit ENVIRONMENT PYTHONDONTWRITEBYTECODE=1)
