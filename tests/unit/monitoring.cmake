# Prometheus' rules and Grafana's dashboards: no build needed. Where Grafana's schema could not be installed its file runs
# no test, which is pytest's exit code 5 and a test that ctest lists as skipped.
foreach(name IN ITEMS dashboards dashboards_schema prometheus_rules)
  add_test(NAME ${name}_test
    COMMAND ${OUTRIDER_VENV}/bin/python -m pytest -q -rs -p no:cacheprovider
      ${CMAKE_CURRENT_SOURCE_DIR}/unit/${name}_test.py
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${name}_test PROPERTIES
    LABELS unit SKIP_RETURN_CODE 5 ENVIRONMENT PYTHONDONTWRITEBYTECODE=1)
endforeach()
