# Tests that start the real services as processes; one ctest test for each Python file. They take the machine
# for themselves, since they run several processes each. One that hangs fails after PATIENCE (harness.py).
function(outrider_system_test label folder name)
  add_test(NAME ${label}_${name}
    COMMAND ${OUTRIDER_VENV}/bin/python -m pytest -q -p no:cacheprovider ${folder}/test_${name}.py
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${label}_${name} PROPERTIES
    LABELS ${label} RUN_SERIAL ON TIMEOUT 600
    ENVIRONMENT "OUTRIDER_BIN=$<TARGET_FILE_DIR:outrider-coordinator>;PYTHONDONTWRITEBYTECODE=1")
endfunction()

foreach(name IN ITEMS admission any_request bad_requests beams branches command_line concurrency cpp_sdk drafters faults frequent_tokens greedy hard_cases heads https limits logprobs monitoring numbers openai openai_server operations outages pair pools prefix_cache proposals protocol python_sdk quantised run_ahead samples security self_test servers startup tensor_parallel torch tracing tree_items trees vocabularies)
  outrider_system_test(system ${CMAKE_CURRENT_LIST_DIR} ${name})
endforeach()
foreach(name IN ITEMS distribution families laws proposals_law soak)
  outrider_system_test(slow ${CMAKE_CURRENT_LIST_DIR}/../slow ${name})
endforeach()
