# outrider_fuzz(SOURCE LIBS ...) makes a fuzz target named like its source, run by ctest for six seconds under the label "fuzz".
# libFuzzer comes as a library. GCC has no -fsanitize=fuzzer, so driver.cc passes its coverage on. libFuzzer defines the
# same hook, only to refuse GCC's coverage; making that hook weak lets the driver's replace it.

set(OUTRIDER_PRECOMPILED outrider_service_headers)

# Instruments libraries and programs for libFuzzer. Unit tests link to the libraries too, which then call empty hooks.
outrider_library(unfollowed SOURCES fuzz/unfollowed.cc)
function(outrider_follow)
  foreach(target IN LISTS ARGN)
    target_compile_options(${target} PRIVATE -fsanitize-coverage=trace-pc,trace-cmp)
    target_link_libraries(${target} PRIVATE outrider::unfollowed)
  endforeach()
endfunction()

find_library(LIBFUZZER Fuzzer PATHS /usr/lib/llvm-14/lib REQUIRED)
set(libfuzzer ${CMAKE_CURRENT_BINARY_DIR}/libFuzzer.a)
add_custom_command(OUTPUT ${libfuzzer}
  COMMAND ${CMAKE_OBJCOPY} --weaken-symbol=__sanitizer_cov_trace_pc ${LIBFUZZER} ${libfuzzer}
  DEPENDS ${LIBFUZZER} VERBATIM)
add_custom_target(libfuzzer DEPENDS ${libfuzzer})
outrider_library(fuzz_driver SOURCES fuzz/driver.cc)
set_target_properties(outrider_fuzz_driver PROPERTIES COMPILE_OPTIONS "" DISABLE_PRECOMPILE_HEADERS ON)
add_dependencies(outrider_fuzz_driver libfuzzer)

# Only the parsers of the services: the rest of their libraries takes minutes to compile.
outrider_library(fuzz_parsers
  SOURCES
    ${CMAKE_SOURCE_DIR}/common/rpc/convert.cc
    ${CMAKE_SOURCE_DIR}/common/rpc/error.cc
    ${CMAKE_SOURCE_DIR}/common/rpc/parse_message.cc
    ${CMAKE_SOURCE_DIR}/common/serve/serve_item.cc
    ${CMAKE_SOURCE_DIR}/coordinator/api/parse_request.cc
    ${CMAKE_SOURCE_DIR}/coordinator/api/parse_speculation.cc
    ${CMAKE_SOURCE_DIR}/coordinator/api/tools.cc
    ${CMAKE_SOURCE_DIR}/common/net/http_parser.cc
    ${CMAKE_SOURCE_DIR}/coordinator/openai/chat_fields.cc
    ${CMAKE_SOURCE_DIR}/coordinator/openai/grammar_fields.cc
    ${CMAKE_SOURCE_DIR}/coordinator/openai/openai_request.cc
    ${CMAKE_SOURCE_DIR}/coordinator/openai/tool_calls.cc
    ${CMAKE_SOURCE_DIR}/coordinator/openai/tool_fields.cc
    ${CMAKE_SOURCE_DIR}/coordinator/vllm/vllm_request.cc
  PUBLIC outrider::chat_template outrider::proto outrider::spec outrider::text outrider::vllm absl::status absl::statusor
         nlohmann_json::nlohmann_json)
outrider_follow(outrider_gguf outrider_text outrider_decoder outrider_chat_template llama_jinja outrider_fuzz_parsers)

function(outrider_fuzz source)
  cmake_path(GET source STEM name)
  cmake_parse_arguments(ARG "" "" "LIBS" ${ARGN})
  outrider_program(fuzz_${name} SOURCES ${source} LIBS ${ARG_LIBS} outrider::fuzz_driver ${libfuzzer})
  set_target_properties(fuzz_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz)
  # Links the driver's hooks. Otherwise the empty ones could be linked in their place.
  target_link_options(fuzz_${name} PRIVATE -Wl,-u,LLVMFuzzerTestOneInput)
  outrider_follow(fuzz_${name})
  # libFuzzer adds the inputs that it finds to the first folder.
  set(found ${CMAKE_BINARY_DIR}/found/${name})
  file(MAKE_DIRECTORY ${found})
  add_test(NAME fuzz_${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}
    COMMAND fuzz_${name} -seed=1 -max_total_time=6 -timeout=10 -rss_limit_mb=1024 -max_len=4096 -print_final_stats=1
      -artifact_prefix=${found}/ ${found} tests/fuzz/corpus/${name})
  set_tests_properties(fuzz_${name} PROPERTIES LABELS fuzz)
endfunction()

outrider_fuzz(fuzz/safetensors.cc LIBS outrider::decoder)
outrider_fuzz(fuzz/config.cc LIBS outrider::decoder)
outrider_fuzz(fuzz/gguf.cc LIBS outrider::gguf outrider::text)
outrider_fuzz(fuzz/split_pattern.cc LIBS outrider::text)
outrider_fuzz(fuzz/stop_matcher.cc LIBS outrider::text)
outrider_fuzz(fuzz/tokenizer_file.cc LIBS outrider::text)
outrider_fuzz(fuzz/tokenizer_text.cc LIBS outrider::text)
target_compile_definitions(outrider_chat_template PRIVATE FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION)
outrider_fuzz(fuzz/chat_template.cc LIBS outrider::chat_template)
outrider_fuzz(fuzz/generate_request.cc LIBS outrider::fuzz_parsers)
outrider_fuzz(fuzz/http_request.cc LIBS outrider::fuzz_parsers)
outrider_fuzz(fuzz/openai_request.cc LIBS outrider::fuzz_parsers)
outrider_fuzz(fuzz/sequence_item.cc LIBS outrider::fuzz_parsers)
outrider_fuzz(fuzz/tool_calls.cc LIBS outrider::fuzz_parsers)
outrider_fuzz(fuzz/verdict.cc LIBS outrider::fuzz_parsers)
outrider_fuzz(fuzz/vllm_request.cc LIBS outrider::fuzz_parsers)

# The control: its defect must be found.
outrider_fuzz(fuzz/planted_defect.cc)
set_tests_properties(fuzz_planted_defect PROPERTIES PASS_REGULAR_EXPRESSION "heap-buffer-overflow.*planted_defect.cc")
