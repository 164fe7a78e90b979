# llama.cpp's Jinja engine, from the sources that scripts/install unpacks into OUTRIDER_VENV: the target
# llama::jinja. The sources are unchanged, so warnings are off.
set(JINJA_ROOT ${OUTRIDER_VENV}/src/llama.cpp/common)
outrider_find_sources(Jinja ${JINJA_ROOT} jinja/runtime.h)
if(Jinja_FOUND AND NOT TARGET llama::jinja)
  find_package(nlohmann_json CONFIG REQUIRED)
  add_library(llama_jinja STATIC
    ${JINJA_ROOT}/jinja/lexer.cpp
    ${JINJA_ROOT}/jinja/parser.cpp
    ${JINJA_ROOT}/jinja/runtime.cpp
    ${JINJA_ROOT}/jinja/string.cpp
    ${JINJA_ROOT}/jinja/value.cpp
    ${JINJA_ROOT}/unicode.cpp)
  add_library(llama::jinja ALIAS llama_jinja)
  target_compile_options(llama_jinja PRIVATE -w)
  # Its nodes assert the types of their parts, which a template decides. It checks them again when it uses them, and throws.
  target_compile_definitions(llama_jinja PUBLIC NDEBUG)
  if(OUTRIDER_SANITIZE MATCHES undefined)
    target_compile_options(llama_jinja PRIVATE -fno-sanitize=undefined)  # its arithmetic stays as it is
  endif()
  target_include_directories(llama_jinja SYSTEM PUBLIC ${JINJA_ROOT})
  target_link_libraries(llama_jinja PUBLIC nlohmann_json::nlohmann_json)
endif()
