# CUDA from the PyPI wheels in OUTRIDER_VENV, for the plug-in: CMAKE_CUDA_COMPILER for enable_language(CUDA), and the
# imported targets cuda::cudart, cuda::cublasLt and flashinfer::flashinfer (headers).
#
# The compiler is called through the folder of links that scripts/install makes, since CMake expects the layout of a
# toolkit around it. The libraries are linked from the wheels.
set(CUDA_TOOLKIT ${OUTRIDER_VENV}/cuda)
file(GLOB CUDA_WHEELS "${OUTRIDER_VENV}/lib/python3*/site-packages/nvidia/cu13")
file(GLOB FLASHINFER_ROOT "${OUTRIDER_VENV}/lib/python3*/site-packages/flashinfer/data")
if(EXISTS ${CUDA_TOOLKIT}/bin/nvcc)
  set(CUDA_NVCC ${CUDA_TOOLKIT}/bin/nvcc)
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CudaWheels REQUIRED_VARS CUDA_NVCC CUDA_WHEELS FLASHINFER_ROOT
  REASON_FAILURE_MESSAGE "no CUDA compiler in ${OUTRIDER_VENV}: run 'scripts/install cuda'")
if(CudaWheels_FOUND AND NOT TARGET cuda::cudart)
  set(CMAKE_CUDA_COMPILER ${CUDA_NVCC})
  set(CMAKE_CUDA_ARCHITECTURES ${OUTRIDER_CUDA_ARCHITECTURES})
  set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
  foreach(lib cudart cublasLt)
    add_library(cuda::${lib} SHARED IMPORTED)
    set_target_properties(cuda::${lib} PROPERTIES
      IMPORTED_LOCATION ${CUDA_WHEELS}/lib/lib${lib}.so.13
      INTERFACE_INCLUDE_DIRECTORIES ${CUDA_WHEELS}/include)
  endforeach()
  # FlashInfer's own CCCL comes before any other: the one on PyPI is too old for it.
  add_library(flashinfer::flashinfer INTERFACE IMPORTED)
  target_include_directories(flashinfer::flashinfer INTERFACE
    ${FLASHINFER_ROOT}/include
    ${FLASHINFER_ROOT}/cccl/libcudacxx/include
    ${FLASHINFER_ROOT}/cccl/cub
    ${FLASHINFER_ROOT}/cccl/thrust)
endif()
