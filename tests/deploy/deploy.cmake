# Tests of deploy/, for Kubernetes and containers; one ctest test for each Python file. A file whose tool could not be
# installed runs no test, which is pytest's exit code 5 and a test that ctest lists as skipped.
foreach(name IN ITEMS fetch_weights images manifests schemas score secrets)
  add_test(NAME deploy_${name}
    COMMAND ${OUTRIDER_VENV}/bin/python -m pytest -q -rs -p no:cacheprovider
      ${CMAKE_CURRENT_LIST_DIR}/test_${name}.py
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(deploy_${name} PROPERTIES
    LABELS unit SKIP_RETURN_CODE 5
    ENVIRONMENT "OUTRIDER_BIN=${CMAKE_RUNTIME_OUTPUT_DIRECTORY};PYTHONDONTWRITEBYTECODE=1")
endforeach()
outrider_system_test(system ${CMAKE_CURRENT_LIST_DIR} deployed_flags)
