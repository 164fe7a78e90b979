# Tests that need a GPU. They are built wherever the plug-in is, and skipped where no GPU can be used.
if(OUTRIDER_CUDA)
  outrider_batches(batches outrider_gpu_test
    ${CMAKE_CURRENT_LIST_DIR}/attention_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/decide_kernels_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/gpu_model.h
    ${CMAKE_CURRENT_LIST_DIR}/gpu_testing.h
    ${CMAKE_CURRENT_LIST_DIR}/layer_kernels_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/main.cc
    ${CMAKE_CURRENT_LIST_DIR}/matmul_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/model_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/step_graphs_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/trees_test.cc)
  outrider_program(outrider_gpu_test
    SOURCES ${batches}
    LIBS
      outrider_cuda_engine outrider::engine outrider::draft_sampler outrider::rejection_sampler GTest::gmock
      Threads::Threads)
  # The program lies beside the plug-in, which it loads, and where bench/gpu/pack finds it.
  add_dependencies(outrider_gpu_test outrider_cuda)
  set_target_properties(outrider_gpu_test PROPERTIES BUILD_RPATH "${CUDA_WHEELS}/lib")
  add_test(NAME outrider_gpu_test COMMAND outrider_gpu_test WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(outrider_gpu_test PROPERTIES
    LABELS unit SKIP_REGULAR_EXPRESSION "^outrider_gpu_test: no GPU can be used here" TIMEOUT 1200)

  # An emulated GPU: the plug-in's host code and the source of its kernels, with CUDA's headers and none of its
  # libraries.
  outrider_batches(batches gpu_emulation
    ${CMAKE_SOURCE_DIR}/common/engine/cuda/attention.cc
    ${CMAKE_SOURCE_DIR}/common/engine/cuda/cuda_model.cc
    ${CMAKE_SOURCE_DIR}/common/engine/cuda/decoder_layers.cc
    ${CMAKE_SOURCE_DIR}/common/engine/cuda/matmul.cc
    ${CMAKE_SOURCE_DIR}/common/engine/cuda/matmul_trial.cc
    ${CMAKE_SOURCE_DIR}/common/engine/cuda/step_graphs.cc
    ${CMAKE_SOURCE_DIR}/common/engine/cuda/weights.cc
    ${CMAKE_CURRENT_LIST_DIR}/emulation/cuda_runtime.cc)
  add_library(gpu_emulation OBJECT
    ${batches}
    ${CMAKE_CURRENT_LIST_DIR}/emulation/algorithms.h
    ${CMAKE_CURRENT_LIST_DIR}/emulation/cublas_lt.cc
    ${CMAKE_CURRENT_LIST_DIR}/emulation/kernels.cc
    ${CMAKE_CURRENT_LIST_DIR}/emulation/work.h)
  target_link_libraries(gpu_emulation PUBLIC outrider::cuda_host flashinfer::flashinfer GTest::gmock)
  target_include_directories(gpu_emulation SYSTEM PUBLIC ${CUDA_WHEELS}/include)
  target_precompile_headers(gpu_emulation REUSE_FROM ${OUTRIDER_PRECOMPILED})
  # These files are nothing but loops, like the kernels for the CPU.
  set_source_files_properties(
    ${CMAKE_CURRENT_LIST_DIR}/emulation/cublas_lt.cc ${CMAKE_CURRENT_LIST_DIR}/emulation/kernels.cc
    PROPERTIES COMPILE_OPTIONS -O3)

  # The same tests on the emulated GPU, of the long ones only a part, and tests that only the emulated GPU allows.
  outrider_unit_test(gpu_emulated_test
    SOURCES
      ${CMAKE_CURRENT_LIST_DIR}/attention_test.cc
      ${CMAKE_CURRENT_LIST_DIR}/decide_kernels_test.cc
      ${CMAKE_CURRENT_LIST_DIR}/emulation/emulated_model.h
      ${CMAKE_CURRENT_LIST_DIR}/emulation/graphs_test.cc
      ${CMAKE_CURRENT_LIST_DIR}/emulation/products_test.cc
      ${CMAKE_CURRENT_LIST_DIR}/layer_kernels_test.cc
      ${CMAKE_CURRENT_LIST_DIR}/model_test.cc
      ${CMAKE_CURRENT_LIST_DIR}/step_graphs_test.cc
      ${CMAKE_CURRENT_LIST_DIR}/trees_test.cc
    LIBS
      gpu_emulation outrider::engine outrider::draft_sampler outrider::rejection_sampler Threads::Threads)
  set_tests_properties(gpu_emulated_test PROPERTIES COST 100 ENVIRONMENT "GTEST_FILTER=-CudaModel.IsWhatThePluginMakes:Attention.ARow*:All/CudaModelOf.*/bfloat16:Settings/*/fp8_*:*_Plain:*_Hot:*_TopK:*_Block:*_LogProbabilities:*_GreedyTrees")

  # The plug-in on the emulated GPU, for bench/gpu/run --dry.
  add_library(outrider_emulated_cuda MODULE ${CMAKE_SOURCE_DIR}/common/engine/cuda/plugin.cc)
  set_target_properties(outrider_emulated_cuda PROPERTIES
    OUTPUT_NAME outrider_cuda LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/emulated)
  target_link_libraries(outrider_emulated_cuda PRIVATE gpu_emulation)
  target_link_options(outrider_emulated_cuda PRIVATE
    -Wl,--version-script=${CMAKE_SOURCE_DIR}/common/engine/cuda/exports.map -Wl,-z,defs)
endif()
