# SPDX-License-Identifier: MIT
# What `cmake --install build/release --prefix P` puts where:
#
#   P/include/quire/            public headers                    P/bin/quire              the tool's command
#   P/lib/libquire.{so,a}       the library                       P/share/quire/tool/      the tool, in Python
#   P/lib/libquire-malloc.so    the same as the program's malloc
#   P/lib/cmake/quire/          find_package(quire)               P/libexec/quire/         its native helpers
#   P/lib/pkgconfig/quire.pc    pkg-config quire                  P/share/doc/quire/       documents, examples
#   P/share/man/man{1,3,7}/         manual pages, where scdoc is
#
# Nothing that is installed knows P: the whole prefix can be moved.
# The component `tool` is what the command needs, without what programs are built with: pyproject.toml installs it alone.
# Included by the top CMakeLists.txt after every target is there.
include(CMakePackageConfigHelpers)

set(QUIRE_PC_LIBS_PRIVATE " -lpthread -Wl,-z,nodelete")
if(NOT QUIRE_WITH_SHARED)
  set(QUIRE_PC_LIBS ${QUIRE_PC_LIBS_PRIVATE}) # who links the static library names what it needs
endif()
set(QUIRE_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/quire)
set(QUIRE_PC_DIR ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
set(QUIRE_TOOL_DIR ${CMAKE_INSTALL_DATADIR}/quire/tool)
set(QUIRE_HELPER_DIR libexec/quire) # the tool looks there, three directories above its own: keep the two together
# Some packagers give full paths for folders; those are not in the prefix, and quire.pc names them.
foreach(dir LIBDIR INCLUDEDIR)
  set(QUIRE_PC_${dir} "\${prefix}/${CMAKE_INSTALL_${dir}}")
  if(IS_ABSOLUTE "${CMAKE_INSTALL_${dir}}")
    set(QUIRE_PC_${dir} "${CMAKE_INSTALL_${dir}}")
  endif()
endforeach()
set(QUIRE_PC_PREFIX "${CMAKE_INSTALL_PREFIX}")
if(NOT IS_ABSOLUTE "${QUIRE_PC_DIR}")
  file(RELATIVE_PATH QUIRE_PC_PREFIX /p/${QUIRE_PC_DIR} /p)
  set(QUIRE_PC_PREFIX "\${pcfiledir}/${QUIRE_PC_PREFIX}")
endif()
file(RELATIVE_PATH QUIRE_TOOL_FROM_BIN ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_DATADIR}/quire/tool)

foreach(target quire quire_static quire_malloc)
  if(TARGET ${target})
    set(component "")
    if(NOT target STREQUAL quire_static)
      set(component COMPONENT tool) # the drop-in, and what the drivers are linked with
    endif()
    install(TARGETS ${target} EXPORT quire-targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ${component}
      ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
    string(REPLACE quire_ "" name ${target}) # quire::quire, quire::static, quire::malloc
    set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  endif()
endforeach()
install(EXPORT quire-targets NAMESPACE quire:: DESTINATION ${QUIRE_CMAKE_DIR})
install(DIRECTORY include/quire DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")

configure_package_config_file(packaging/quire-config.cmake.in ${PROJECT_BINARY_DIR}/packaging/quire-config.cmake
  INSTALL_DESTINATION ${QUIRE_CMAKE_DIR} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/packaging/quire-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/packaging/quire-config.cmake ${PROJECT_BINARY_DIR}/packaging/quire-config-version.cmake
  DESTINATION ${QUIRE_CMAKE_DIR})
configure_file(packaging/quire.pc.in ${PROJECT_BINARY_DIR}/packaging/quire.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/packaging/quire.pc DESTINATION ${QUIRE_PC_DIR})

# What packages are called: scripts/packages.py fills their recipes in with it.
if(TARGET quire)
  get_target_property(QUIRE_ABI quire SOVERSION)
  configure_file(packaging/names.in ${PROJECT_BINARY_DIR}/packaging/names @ONLY)
endif()

# As they lie in the checkout, so that their links to each other lead somewhere.
install(FILES README.md CHANGELOG.md CONTRIBUTING.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY doc examples DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING
  PATTERN "*.md" PATTERN "*.svg" PATTERN "*.json" PATTERN "*.[ch]" PATTERN "*.py" PATTERN "*.sh" PATTERN "*.sed" PATTERN man EXCLUDE)

# The manual is made while it is installed: it asks the tool's commands for their options, and no build should wait for that.
find_program(QUIRE_SCDOC scdoc DOC "Makes the manual pages")
find_package(Python3 3.11 COMPONENTS Interpreter QUIET)
if(QUIRE_SCDOC AND Python3_Interpreter_FOUND)
  install(CODE "file(LOCK \"${PROJECT_BINARY_DIR}/manual.lock\" GUARD PROCESS)") # another may be installing this build at the moment
  install(CODE "file(REMOVE_RECURSE \"${PROJECT_BINARY_DIR}/manual\")") # quoted: a folder's name may have spaces
  install(CODE "execute_process(RESULT_VARIABLE status
    COMMAND \"${Python3_EXECUTABLE}\" -B \"${PROJECT_SOURCE_DIR}/scripts/manual/pages.py\" \"${PROJECT_BINARY_DIR}/manual\" --scdoc \"${QUIRE_SCDOC}\")
  if(status)
    message(FATAL_ERROR \"the manual could not be made\")
  endif()")
  install(DIRECTORY ${PROJECT_BINARY_DIR}/manual/ DESTINATION ${CMAKE_INSTALL_MANDIR} FILES_MATCHING PATTERN "*.[137]")
else()
  message(STATUS "no manual pages: they need scdoc (apt-get install scdoc) and Python 3.11")
endif()

# Every program and library that tools/native and bench build is a helper of the tool; none of them is of use by itself.
function(quire_install_helpers directory destination)
  get_property(targets DIRECTORY ${directory} PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(type ${target} TYPE)
    if(NOT type MATCHES "^(EXECUTABLE|MODULE_LIBRARY|SHARED_LIBRARY)$") # of others CMake 3.16 refuses to say the next
      continue()
    endif()
    get_target_property(not_built ${target} EXCLUDE_FROM_ALL)
    if(NOT not_built)
      install(TARGETS ${target} RUNTIME DESTINATION ${destination} COMPONENT tool LIBRARY DESTINATION ${destination} COMPONENT tool)
    endif()
  endforeach()
  get_property(children DIRECTORY ${directory} PROPERTY SUBDIRECTORIES)
  foreach(child IN LISTS children)
    quire_install_helpers(${child} ${destination})
  endforeach()
endfunction()

if(QUIRE_WITH_TOOLS)
  if(TARGET quire-record-pools)
    install(TARGETS quire-record-pools ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}) # libquire-record.a, no part of the library
    install(FILES tools/native/pools/include/quire/record.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/quire)
  endif()
  quire_install_helpers(${PROJECT_SOURCE_DIR}/tools/native ${QUIRE_HELPER_DIR})
  install(DIRECTORY tools/quire/ DESTINATION ${QUIRE_TOOL_DIR} COMPONENT tool PATTERN __pycache__ EXCLUDE)
  install(DIRECTORY tools/gdb/ DESTINATION ${CMAKE_INSTALL_DATADIR}/quire/gdb FILES_MATCHING PATTERN "*.py") # the tool looks beside itself
  install(DIRECTORY tools/gdb/ DESTINATION ${QUIRE_TOOL_DIR}/../gdb COMPONENT tool PATTERN __pycache__ EXCLUDE) # the tool looks there, beside its own
  configure_file(packaging/quire.in ${PROJECT_BINARY_DIR}/packaging/quire @ONLY)
  install(PROGRAMS ${PROJECT_BINARY_DIR}/packaging/quire DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
if(QUIRE_WITH_BENCH)
  quire_install_helpers(${PROJECT_SOURCE_DIR}/bench ${QUIRE_HELPER_DIR}/bench)
endif()
