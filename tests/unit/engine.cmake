find_package(nlohmann_json CONFIG REQUIRED)

outrider_unit_test(engine_test
  SOURCES
    ${CMAKE_CURRENT_LIST_DIR}/continuing_layer_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/controlled_pair_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/engine_blocks_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/engine_cpu_weights_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/engine_families_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/engine_frequent_head_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/engine_gguf_config_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/engine_gguf_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/engine_golden_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/engine_goldens.h
    ${CMAKE_CURRENT_LIST_DIR}/engine_hidden_engines.cc
    ${CMAKE_CURRENT_LIST_DIR}/engine_model_config_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/engine_packing_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/engine_quantization_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/engine_quantised_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/engine_safetensors_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/engine_self_test_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/engine_tensor_names_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/engine_trees_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/engine_unpack_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/gguf_testing.h
    ${CMAKE_CURRENT_LIST_DIR}/hidden_states_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/hidden_testing.h
  LIBS outrider::engine nlohmann_json::nlohmann_json)

outrider_unit_test(engine_threads_test THREADS
  SOURCES
    ${CMAKE_CURRENT_LIST_DIR}/engine_invariance_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/engine_runner_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/engine_thread_pool_test.cc
  LIBS outrider::engine nlohmann_json::nlohmann_json)
if(OUTRIDER_SANITIZE STREQUAL "thread")
  # ThreadSanitizer runs only the tests of passes with several threads.
  set_tests_properties(engine_threads_test PROPERTIES ENVIRONMENT
    "GTEST_FILTER=-*Invariance.A*:*Invariance.P*:*Invariance.S*:*Invariance.W*")
endif()

# The decisions of the CUDA plug-in on the host, which need neither CUDA nor a GPU.
outrider_unit_test(cuda_host_test
  SOURCES
    ${CMAKE_CURRENT_LIST_DIR}/cuda_attention_plan_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/cuda_can_run_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/cuda_graph_shape_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/cuda_matmul_choices_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/cuda_step_plan_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/cuda_tree_plan_test.cc
  LIBS outrider::cuda_host)

# The device's decisions, from the same source on the host.
outrider_unit_test(decide_test THREADS
  SOURCES
    ${CMAKE_CURRENT_LIST_DIR}/decide_cases.h
    ${CMAKE_CURRENT_LIST_DIR}/decide_draw_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/decide_shape_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/decide_testing.h
    ${CMAKE_CURRENT_LIST_DIR}/decide_verify_test.cc
  LIBS outrider::cuda_host Threads::Threads)
if(OUTRIDER_SANITIZE STREQUAL "thread")
  set_tests_properties(decide_test PROPERTIES ENVIRONMENT "GTEST_FILTER=-*OneThread*:*IsNoticed")
endif()

# The kernels of a layer, from the same source on the host.
outrider_unit_test(layer_rows_test THREADS
  SOURCES
    ${CMAKE_CURRENT_LIST_DIR}/layer_rows_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/layer_testing.h
  LIBS outrider::cuda_host Threads::Threads)

outrider_library(host_device
  SOURCES
    ${CMAKE_CURRENT_LIST_DIR}/decide_testing.h
    ${CMAKE_CURRENT_LIST_DIR}/host_device_model.cc
    ${CMAKE_CURRENT_LIST_DIR}/host_device_model.h
    ${CMAKE_CURRENT_LIST_DIR}/host_kernels.h
  PUBLIC outrider::cuda_host outrider::draft_sampler outrider::rejection_sampler GTest::gmock Threads::Threads)
target_compile_options(outrider_host_device PRIVATE ${OUTRIDER_TEST_OPTIONS})

outrider_unit_test(worker_test THREADS
  SOURCES
    ${CMAKE_CURRENT_LIST_DIR}/changed_model.h
    ${CMAKE_CURRENT_LIST_DIR}/device_model_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/device_worker_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/device_worker_testing.h
    ${CMAKE_CURRENT_LIST_DIR}/draft_lookup_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/held_sampler.h
    ${CMAKE_CURRENT_LIST_DIR}/mailbox_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/scheduler_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/sequence_branches_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/sequence_store_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/worker_branches_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/worker_limits_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/worker_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/worker_tree_rounds_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/worker_trees_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/worker_trees_testing.h
  LIBS outrider::host_device)

outrider_unit_test(device_self_test_test
  SOURCES
    ${CMAKE_CURRENT_LIST_DIR}/device_self_test_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/device_worker_testing.h
  LIBS outrider::host_device)

outrider_unit_test(proposers_test
  SOURCES
    ${CMAKE_CURRENT_LIST_DIR}/changed_model.h
    ${CMAKE_CURRENT_LIST_DIR}/engine_hidden_engines.cc
    ${CMAKE_CURRENT_LIST_DIR}/heads_load_testing.h
    ${CMAKE_CURRENT_LIST_DIR}/heads_testing.h
    ${CMAKE_CURRENT_LIST_DIR}/hidden_testing.h
    ${CMAKE_CURRENT_LIST_DIR}/proposals_law_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/proposers_golden_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/proposers_load_eagle_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/proposers_load_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/worker_trees_testing.h
  LIBS outrider::engine outrider::rejection_sampler nlohmann_json::nlohmann_json)

outrider_unit_test(worker_random_test
  SOURCES
    ${CMAKE_CURRENT_LIST_DIR}/changed_model.h
    ${CMAKE_CURRENT_LIST_DIR}/heads_testing.h
    ${CMAKE_CURRENT_LIST_DIR}/worker_random_proposals_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/worker_random_trees_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/worker_traffic.h
    ${CMAKE_CURRENT_LIST_DIR}/worker_trees_testing.h
  LIBS outrider::host_device)

if(OUTRIDER_TORCH)
  outrider_unit_test(torch_model_test
    SOURCES
      ${CMAKE_CURRENT_LIST_DIR}/continuing_layer_test.cc
      ${CMAKE_CURRENT_LIST_DIR}/hidden_states_test.cc
      ${CMAKE_CURRENT_LIST_DIR}/hidden_testing.h
      ${CMAKE_CURRENT_LIST_DIR}/proposers_golden_test.cc
      ${CMAKE_CURRENT_LIST_DIR}/torch_hidden_engines.cc
      ${CMAKE_CURRENT_LIST_DIR}/torch_model_test.cc
      ${CMAKE_CURRENT_LIST_DIR}/torch_ranks_test.cc
      ${CMAKE_CURRENT_LIST_DIR}/torch_ranks_testing.h
    LIBS outrider::engine outrider::rejection_sampler nlohmann_json::nlohmann_json)
  # A plug-in lies beside the program that loads it.
  set_target_properties(torch_model_test PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
  add_dependencies(torch_model_test outrider_torch)
  outrider_unit_test(torch_step_test
    SOURCES
      ${CMAKE_CURRENT_LIST_DIR}/torch_command_test.cc
      ${CMAKE_CURRENT_LIST_DIR}/torch_ranks_testing.h
      ${CMAKE_CURRENT_LIST_DIR}/torch_step_test.cc
    LIBS outrider_torch_decoder)
  set_target_properties(torch_step_test PROPERTIES BUILD_RPATH ${TORCH_ROOT}/lib)
endif()

outrider_unit_test(timed_pair_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/timed_pair_test.cc
  LIBS outrider::engine)
