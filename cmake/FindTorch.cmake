# libtorch out of the PyPI wheel in OUTRIDER_VENV: the imported targets torch::torch_cpu and torch::c10.
# The wheel carries protobuf headers of its own, so its include folder comes after the system's.
file(GLOB TORCH_ROOT "${OUTRIDER_VENV}/lib/python3*/site-packages/torch")
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Torch REQUIRED_VARS TORCH_ROOT
  REASON_FAILURE_MESSAGE "no torch in ${OUTRIDER_VENV}: run 'make install'")
if(Torch_FOUND AND NOT TARGET torch::torch_cpu)
  foreach(lib torch_cpu c10)
    add_library(torch::${lib} SHARED IMPORTED)
    set_target_properties(torch::${lib} PROPERTIES IMPORTED_LOCATION ${TORCH_ROOT}/lib/lib${lib}.so)
    target_compile_options(torch::${lib} INTERFACE
      "$<$<COMPILE_LANGUAGE:CXX>:SHELL:-idirafter ${TORCH_ROOT}/include>")
  endforeach()
  target_link_libraries(torch::torch_cpu INTERFACE torch::c10)
endif()
