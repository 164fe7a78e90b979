find_package(nlohmann_json CONFIG REQUIRED)

outrider_unit_test(engine_test
  SOURCES
    ${CMAKE_CURRENT_LIST_DIR}/controlled_pair_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/engine_golden_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/engine_invariance_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/engine_model_config_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/engine_runner_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/engine_safetensors_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/engine_thread_pool_test.cc
  LIBS outrider::engine nlohmann_json::nlohmann_json)

# What the CUDA plug-in decides on the host: needs neither CUDA nor a GPU.
outrider_unit_test(cuda_host_test
  SOURCES
    ${CMAKE_CURRENT_LIST_DIR}/cuda_attention_plan_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/cuda_step_plan_test.cc
  LIBS outrider::cuda_host)

# The plug-in as a file, and bench/gpu, as far as they can be seen without a GPU. Tests of the plug-in are skipped, and
# scripts/test says so, where its compiler could not be installed.
add_test(NAME gpu_bench_test
  COMMAND ${OUTRIDER_VENV}/bin/python -m pytest -q -rs -p no:cacheprovider ${CMAKE_CURRENT_LIST_DIR}/gpu_bench_test.py
  WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
set_tests_properties(gpu_bench_test PROPERTIES
  LABELS unit ENVIRONMENT "OUTRIDER_BIN=${CMAKE_RUNTIME_OUTPUT_DIRECTORY};PYTHONDONTWRITEBYTECODE=1")
