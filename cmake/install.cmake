# Installs files: cmake --install BUILD [--prefix WHERE] [--component programs|cuda|torch|sdk]. If scripts/package has
# generated files for the programs (man pages, licences, a list of parts), they are installed too.
include(GNUInstallDirs)
set(PACKAGE_FILES ${CMAKE_BINARY_DIR}/package)

install(TARGETS outrider outrider-coordinator outrider-draft outrider-target outrider-pair
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
# `outrider` finds them relative to its own path.
install(DIRECTORY models/tiny-draft models/tiny-heads models/tiny-target DESTINATION share/outrider/models COMPONENT programs)
install(FILES LICENSE NOTICE README.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT programs)
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR}/docs COMPONENT programs)
install(FILES ${PACKAGE_FILES}/THIRD_PARTY_LICENSES ${PACKAGE_FILES}/outrider.spdx.json
  DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT programs OPTIONAL)
install(DIRECTORY ${PACKAGE_FILES}/man1 DESTINATION ${CMAKE_INSTALL_MANDIR} COMPONENT programs OPTIONAL)
install(FILES client/cli/completion/outrider.bash DESTINATION share/bash-completion/completions COMPONENT programs RENAME outrider)
install(FILES client/cli/completion/_outrider DESTINATION share/zsh/site-functions COMPONENT programs)
install(FILES client/cli/completion/outrider.fish DESTINATION share/fish/vendor_completions.d COMPONENT programs)
install(DIRECTORY deploy/systemd/ DESTINATION lib/systemd/system COMPONENT programs)

# Programs look for plug-ins here (common/engine/backend.cc). Plug-ins look beside themselves for each other and their libraries.
foreach(plugin IN ITEMS cuda torch torch_cuda)
  if(TARGET outrider_${plugin})
    string(REGEX REPLACE "_.*" "" component ${plugin})
    set_target_properties(outrider_${plugin} PROPERTIES INSTALL_RPATH "$ORIGIN")
    install(TARGETS outrider_${plugin} LIBRARY DESTINATION lib/outrider COMPONENT ${component})
  endif()
endforeach()

# cpack builds a package of each component that CPACK_COMPONENTS_ALL names.
set(CPACK_GENERATOR DEB TGZ)
set(CPACK_PACKAGE_NAME outrider)
set(CPACK_PACKAGE_CONTACT "the Outrider project")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Speculative decoding as a pair of gRPC services")
set(CPACK_RESOURCE_FILE_LICENSE ${CMAKE_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_OUTPUT_FILE_PREFIX ${CMAKE_BINARY_DIR}/packages)
set(CPACK_COMPONENTS_ALL programs sdk)
set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_NAME outrider)
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_SDK_PACKAGE_NAME liboutrider-dev)
set(CPACK_DEBIAN_SDK_PACKAGE_DEPENDS "libgrpc++-dev, libprotobuf-dev, libabsl-dev")
include(CPack)
