# Tests that start the real services as processes; one ctest test for each Python file. A test that hangs fails after PATIENCE
# (harness.py). They wait more than they compute, so that several share a processor. With ALONE one has the machine for itself:
# it looks at figures of some time.
function(outrider_system_test label folder name)
  cmake_parse_arguments(ARG "ALONE" "" "" ${ARGN})
  add_test(NAME ${label}_${name}
    COMMAND ${OUTRIDER_VENV}/bin/python -m pytest -q -p no:cacheprovider ${folder}/test_${name}.py
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${label}_${name} PROPERTIES
    LABELS ${label} RUN_SERIAL ${ARG_ALONE}
    ENVIRONMENT "OUTRIDER_BIN=$<TARGET_FILE_DIR:outrider-coordinator>;PYTHONDONTWRITEBYTECODE=1")
endfunction()

# The longest come first.
foreach(name IN ITEMS outages gpu_dry_run exhaustion first_law beams torch hard_cases heads tensor_parallel addresses admission any_request bad_requests branches chat command_line concurrency cpp_sdk drafters extensions faults frequent_tokens gguf greedy https limits logprobs numbers openai openai_examples openai_server operations pair pools prefix_cache proposals protocol python_sdk quantised run_ahead samples security self_test servers startup structured_output tools tracing tree_items trees vocabularies)
  outrider_system_test(system ${CMAKE_CURRENT_LIST_DIR} ${name})
endforeach()
foreach(name IN ITEMS monitoring)
  outrider_system_test(system ${CMAKE_CURRENT_LIST_DIR} ${name} ALONE)
endforeach()
foreach(name IN ITEMS soak distribution laws proposals_law families published_pair)
  outrider_system_test(slow ${CMAKE_CURRENT_LIST_DIR}/../slow ${name})
endforeach()
