# Tests of the plug-in's file and of bench/gpu that need no GPU. Where the plug-in's compiler could not be installed,
# its tests are skipped, and scripts/test says so.
foreach(name IN ITEMS gpu_bench_test gpu_pack_test)
  add_test(NAME ${name}
    COMMAND ${OUTRIDER_VENV}/bin/python -m pytest -q -rs -p no:cacheprovider ${CMAKE_CURRENT_LIST_DIR}/${name}.py
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES
    LABELS unit ENVIRONMENT "OUTRIDER_BIN=${CMAKE_RUNTIME_OUTPUT_DIRECTORY};PYTHONDONTWRITEBYTECODE=1")
endforeach()

# deploy/gpu/mps, with a fake daemon that only starts and ends.
add_test(NAME mps_test
  COMMAND ${OUTRIDER_VENV}/bin/python -m pytest -q -p no:cacheprovider ${CMAKE_CURRENT_LIST_DIR}/mps_test.py
  WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
set_tests_properties(mps_test PROPERTIES LABELS unit ENVIRONMENT PYTHONDONTWRITEBYTECODE=1)

# The tool that finds the first wrong kernel, on the results of two engines on the CPU.
if(OUTRIDER_TORCH)
  add_test(NAME layers_test
    COMMAND ${OUTRIDER_VENV}/bin/python -m pytest -q -p no:cacheprovider ${CMAKE_CURRENT_LIST_DIR}/layers_test.py
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(layers_test PROPERTIES
    LABELS unit ENVIRONMENT "OUTRIDER_BIN=${CMAKE_RUNTIME_OUTPUT_DIRECTORY};PYTHONDONTWRITEBYTECODE=1")
endif()
