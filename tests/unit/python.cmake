# The protos, and the Python SDK as scripts/install has installed it: no build needed.
foreach(name IN ITEMS protos_test python_package_test python_sdk_test python_sdk_end_test python_sdk_shape_test python_sdk_tls_test)
  add_test(NAME ${name}
    COMMAND ${OUTRIDER_VENV}/bin/python -m pytest -q -p no:cacheprovider ${CMAKE_CURRENT_LIST_DIR}/${name}.py
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES LABELS unit ENVIRONMENT PYTHONDONTWRITEBYTECODE=1)
endforeach()
