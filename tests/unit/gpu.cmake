# The plug-in as a file, and bench/gpu, as far as they can be seen without a GPU. Tests of the plug-in are skipped, and
# scripts/test says so, where its compiler could not be installed.
foreach(name IN ITEMS gpu_bench_test gpu_pack_test)
  add_test(NAME ${name}
    COMMAND ${OUTRIDER_VENV}/bin/python -m pytest -q -rs -p no:cacheprovider ${CMAKE_CURRENT_LIST_DIR}/${name}.py
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES
    LABELS unit ENVIRONMENT "OUTRIDER_BIN=${CMAKE_RUNTIME_OUTPUT_DIRECTORY};PYTHONDONTWRITEBYTECODE=1")
endforeach()

# deploy/gpu/mps, with a daemon that only comes and goes.
add_test(NAME mps_test
  COMMAND ${OUTRIDER_VENV}/bin/python -m pytest -q -p no:cacheprovider ${CMAKE_CURRENT_LIST_DIR}/mps_test.py
  WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
set_tests_properties(mps_test PROPERTIES LABELS unit ENVIRONMENT PYTHONDONTWRITEBYTECODE=1)

# The tool that finds the first wrong kernel, on what two engines compute here.
if(OUTRIDER_TORCH)
  add_test(NAME layers_test
    COMMAND ${OUTRIDER_VENV}/bin/python -m pytest -q -p no:cacheprovider ${CMAKE_CURRENT_LIST_DIR}/layers_test.py
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(layers_test PROPERTIES
    LABELS unit ENVIRONMENT "OUTRIDER_BIN=${CMAKE_RUNTIME_OUTPUT_DIRECTORY};PYTHONDONTWRITEBYTECODE=1")
endif()
