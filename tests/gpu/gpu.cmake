# What needs a GPU. It is built wherever the plug-in is, and skipped where no GPU can be used.
if(OUTRIDER_CUDA)
  outrider_program(outrider_gpu_test
    SOURCES
      ${CMAKE_CURRENT_LIST_DIR}/attention_test.cc
      ${CMAKE_CURRENT_LIST_DIR}/decide_kernels_test.cc
      ${CMAKE_CURRENT_LIST_DIR}/gpu_testing.h
      ${CMAKE_CURRENT_LIST_DIR}/layer_kernels_test.cc
      ${CMAKE_CURRENT_LIST_DIR}/main.cc
      ${CMAKE_CURRENT_LIST_DIR}/matmul_test.cc
      ${CMAKE_CURRENT_LIST_DIR}/model_test.cc
    LIBS
      outrider_cuda_engine outrider::engine outrider::draft_sampler outrider::rejection_sampler GTest::gmock
      Threads::Threads)
  # It lies beside the plug-in, which it loads, and where bench/gpu/pack finds it.
  add_dependencies(outrider_gpu_test outrider_cuda)
  set_target_properties(outrider_gpu_test PROPERTIES BUILD_RPATH "${CUDA_WHEELS}/lib")
  add_test(NAME outrider_gpu_test COMMAND outrider_gpu_test WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(outrider_gpu_test PROPERTIES
    LABELS unit SKIP_REGULAR_EXPRESSION "^outrider_gpu_test: no GPU can be used here" TIMEOUT 1200)
endif()
