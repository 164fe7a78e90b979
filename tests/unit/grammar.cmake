outrider_unit_test(grammar_test THREADS
  SOURCES
    ${CMAKE_CURRENT_LIST_DIR}/grammar_cache_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/grammar_schema_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/grammar_test.cc
  LIBS outrider::grammar absl::strings)

if(NOT OUTRIDER_CORE_ONLY)
  find_package(nlohmann_json CONFIG REQUIRED)
  outrider_program(grammar_random_schemas
    SOURCES ${CMAKE_CURRENT_LIST_DIR}/grammar_random_schemas.cc
    LIBS outrider::grammar nlohmann_json::nlohmann_json GTest::gmock)  # its precompiled header needs gmock
  target_compile_options(grammar_random_schemas PRIVATE ${OUTRIDER_TEST_OPTIONS})
  set_target_properties(grammar_random_schemas PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME grammar_schemas_test
    COMMAND ${OUTRIDER_VENV}/bin/python -m pytest -q -p no:cacheprovider ${CMAKE_CURRENT_LIST_DIR}/grammar_schemas_test.py
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(grammar_schemas_test PROPERTIES LABELS unit
    ENVIRONMENT "PYTHONDONTWRITEBYTECODE=1;GRAMMAR_RANDOM_SCHEMAS=$<TARGET_FILE:grammar_random_schemas>")
endif()
