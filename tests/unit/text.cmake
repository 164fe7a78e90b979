find_package(nlohmann_json CONFIG REQUIRED)

outrider_unit_test(tokenizer_test THREADS
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/text_tokenizer_test.cc
  LIBS outrider::text absl::strings)

outrider_unit_test(text_test
  SOURCES
    ${CMAKE_CURRENT_LIST_DIR}/gguf_tokenizer_file_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/gguf_tokenizer_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/text_golden_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/text_regex_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/text_stop_matcher_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/text_tokenizer_file_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/text_tokens_beside_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/text_utf8_test.cc
  LIBS outrider::text nlohmann_json::nlohmann_json absl::strings)
if(TARGET text_test)
  target_compile_definitions(text_test PRIVATE OUTRIDER_VOCABULARIES="${test_venv}/src/llama.cpp/models")
endif()
