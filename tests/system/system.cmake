# Tests that start the real services as processes; one ctest test for each Python file. A test that hangs fails after PATIENCE
# (harness.py). With ALONE it has the machine for itself: it stops processes or the network for some time, in which others
# would be slow.
function(outrider_system_test label folder name)
  cmake_parse_arguments(ARG "ALONE" "" "" ${ARGN})
  add_test(NAME ${label}_${name}
    COMMAND ${OUTRIDER_VENV}/bin/python -m pytest -q -p no:cacheprovider ${folder}/test_${name}.py
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${label}_${name} PROPERTIES
    LABELS ${label} RUN_SERIAL ${ARG_ALONE}
    ENVIRONMENT "OUTRIDER_BIN=$<TARGET_FILE_DIR:outrider-coordinator>;PYTHONDONTWRITEBYTECODE=1")
endfunction()

foreach(name IN ITEMS admission any_request bad_requests beams branches command_line concurrency cpp_sdk drafters frequent_tokens greedy hard_cases heads https limits logprobs numbers openai openai_server operations pair prefix_cache proposals protocol python_sdk quantised run_ahead samples security self_test servers startup tensor_parallel torch tracing tree_items trees vocabularies)
  outrider_system_test(system ${CMAKE_CURRENT_LIST_DIR} ${name})
endforeach()
foreach(name IN ITEMS faults monitoring outages pools)
  outrider_system_test(system ${CMAKE_CURRENT_LIST_DIR} ${name} ALONE)
endforeach()
foreach(name IN ITEMS distribution families laws proposals_law)
  outrider_system_test(slow ${CMAKE_CURRENT_LIST_DIR}/../slow ${name})
endforeach()
outrider_system_test(slow ${CMAKE_CURRENT_LIST_DIR}/../slow soak ALONE)
