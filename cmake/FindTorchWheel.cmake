# libtorch from the PyPI wheel in OUTRIDER_VENV, for the plug-in behind --engine torch: the imported targets torch::cpu,
# torch::cuda and, if installed, torch::nccl. The libraries from other wheels that torch::cuda needs are found when a
# program loads it.
file(GLOB TORCH_ROOT "${OUTRIDER_VENV}/lib/python3*/site-packages/torch")
# c10d's headers include those of Gloo. The wheel contains Gloo, but not its headers.
find_path(TORCH_GLOO_HEADERS gloo/context.h)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(TorchWheel REQUIRED_VARS TORCH_ROOT TORCH_GLOO_HEADERS
  REASON_FAILURE_MESSAGE "no libtorch in ${OUTRIDER_VENV}, or no headers of Gloo: run 'scripts/install torch'")
if(TorchWheel_FOUND AND NOT TARGET torch::cpu)
  foreach(lib c10 torch_cpu c10_cuda torch_cuda)
    add_library(torch::${lib} SHARED IMPORTED)
    set_target_properties(torch::${lib} PROPERTIES IMPORTED_LOCATION ${TORCH_ROOT}/lib/lib${lib}.so)
  endforeach()
  # These libraries find CUDA's libraries by their own search path when they are loaded.
  target_link_options(torch::c10 INTERFACE -Wl,--allow-shlib-undefined)
  # The wheel brings headers of other projects, such as protobuf and fmt, which must not come before the system's.
  add_library(torch::cpu INTERFACE IMPORTED)
  target_compile_options(torch::cpu INTERFACE "SHELL:-idirafter ${TORCH_ROOT}/include"
    "SHELL:-idirafter ${TORCH_ROOT}/include/torch/csrc/api/include")
  target_link_libraries(torch::cpu INTERFACE torch::torch_cpu torch::c10)
  add_library(torch::cuda INTERFACE IMPORTED)
  target_link_libraries(torch::cuda INTERFACE torch::cpu torch::torch_cuda torch::c10_cuda)
  # NCCL, if installed, in the version that torch_cuda needs.
  set(NCCL_ROOT "${TORCH_ROOT}/../nvidia/nccl")
  if(EXISTS ${NCCL_ROOT}/include/nccl.h)
    add_library(torch::nccl SHARED IMPORTED)
    set_target_properties(torch::nccl PROPERTIES
      IMPORTED_LOCATION ${NCCL_ROOT}/lib/libnccl.so.2 INTERFACE_INCLUDE_DIRECTORIES ${NCCL_ROOT}/include)
  endif()
endif()
