# ggml's reader of GGUF files and its block formats, from the sources that scripts/install unpacks into OUTRIDER_VENV: the
# target ggml::base. It computes nothing, so no backend is built. The sources are unchanged, so warnings are off.
set(GGML_ROOT ${OUTRIDER_VENV}/src/llama.cpp/ggml)
outrider_find_sources(Ggml ${GGML_ROOT}/include gguf.h)
if(Ggml_FOUND AND NOT TARGET ggml::base)
  add_library(ggml_base STATIC
    ${GGML_ROOT}/src/ggml-alloc.c
    ${GGML_ROOT}/src/ggml-backend-meta.cpp
    ${GGML_ROOT}/src/ggml-backend.cpp
    ${GGML_ROOT}/src/ggml-quants.c
    ${GGML_ROOT}/src/ggml-threading.cpp
    ${GGML_ROOT}/src/ggml.c
    ${GGML_ROOT}/src/gguf.cpp)
  add_library(ggml::base ALIAS ggml_base)
  # Optimised in every build: tests unpack whole models. ggml multiplies sizes before it checks for an overflow.
  target_compile_options(ggml_base PRIVATE -w -O2 -fwrapv)
  target_compile_definitions(ggml_base PRIVATE _GNU_SOURCE GGML_VERSION="" GGML_COMMIT="")
  if(OUTRIDER_SANITIZE MATCHES undefined)
    target_compile_options(ggml_base PRIVATE -fno-sanitize=undefined)  # its arithmetic stays as it is
  endif()
  target_include_directories(ggml_base SYSTEM PUBLIC ${Ggml_INCLUDE_DIR})
  target_include_directories(ggml_base PRIVATE ${GGML_ROOT}/src)
endif()
