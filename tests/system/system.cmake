# Tests that start the real services as processes; one ctest test for each Python file. A test that hangs fails after PATIENCE
# (harness.py). They wait more than they compute, so several share a processor. With ALONE a test has the machine to itself,
# because it checks figures over a span of time. PARTS divides a file that takes minutes into that many tests.
function(outrider_system_test label folder name)
  cmake_parse_arguments(ARG "ALONE" "PARTS" "" ${ARGN})
  if(NOT ARG_PARTS)
    set(ARG_PARTS 1)
  endif()
  foreach(part RANGE 1 ${ARG_PARTS})
    set(test ${label}_${name})
    if(ARG_PARTS GREATER 1)
      string(APPEND test _${part})
    endif()
    add_test(NAME ${test}
      COMMAND ${OUTRIDER_VENV}/bin/python -m pytest -q -p no:cacheprovider ${folder}/test_${name}.py
      WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    set_tests_properties(${test} PROPERTIES
      LABELS ${label} RUN_SERIAL ${ARG_ALONE}
      ENVIRONMENT "OUTRIDER_BIN=$<TARGET_FILE_DIR:outrider-coordinator>;OUTRIDER_TEST_PART=${part}/${ARG_PARTS};PYTHONDONTWRITEBYTECODE=1")
  endforeach()
endfunction()

# The longest come first.
foreach(name IN ITEMS outages first_law)
  outrider_system_test(system ${CMAKE_CURRENT_LIST_DIR} ${name} PARTS 2)
endforeach()
foreach(name IN ITEMS gpu_dry_run exhaustion beams torch hard_cases heads tensor_parallel addresses admission any_options any_request bad_requests branches chat chat_templates clients_apart command_line concurrency configuration cpp_sdk descriptors draft_lookup drafters empty_flags explain extensions faults frequent_tokens gguf greedy https limits logprobs numbers openai openai_examples openai_server operations package pair pools prefix_cache proposals protocol python_sdk quantised run_ahead samples security self_test servers spans startup structured_output tools tracing tree_items trees typescript vllm vocabularies)
  outrider_system_test(system ${CMAKE_CURRENT_LIST_DIR} ${name})
endforeach()
foreach(name IN ITEMS monitoring)
  outrider_system_test(system ${CMAKE_CURRENT_LIST_DIR} ${name} ALONE)
endforeach()
foreach(name IN ITEMS distribution)
  outrider_system_test(slow ${CMAKE_CURRENT_LIST_DIR}/../slow ${name} PARTS 2)
endforeach()
foreach(name IN ITEMS compare soak laws proposals_law families published_pair)
  outrider_system_test(slow ${CMAKE_CURRENT_LIST_DIR}/../slow ${name})
endforeach()
