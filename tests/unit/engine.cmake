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
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/cuda_attention_plan_test.cc
  LIBS outrider::cuda_host)
