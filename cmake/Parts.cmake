# SPDX-License-Identifier: MIT
# Which parts are built here: QUIRE_WITH_TOOLS, QUIRE_WITH_BENCH, QUIRE_WITH_SHARED, QUIRE_WITH_STATIC.
#
#     QUIRE_BUILD_TOOLS=AUTO (default)    top-level, and a C++ compiler and the libraries of the tools are here; a line says when not
#     BUILD_SHARED_LIBS not set           both libraries when top-level, the static one as a part of another project
#     BUILD_SHARED_LIBS=ON, OFF           that one alone; quire::quire is it, whichever it is
#
# Included by the top CMakeLists.txt before the first target.
include(CheckLanguage)

set(QUIRE_WITH_TOOLS ${QUIRE_BUILD_TOOLS})
if(QUIRE_BUILD_TOOLS STREQUAL "AUTO")
  set(QUIRE_WITH_TOOLS OFF)
  if(QUIRE_IS_TOP)
    check_language(CXX)
    find_package(PkgConfig QUIET)
    set(needed libzstd libdw libelf)
    if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
      list(APPEND needed libunwind)
    endif()
    if(PKG_CONFIG_FOUND)
      pkg_check_modules(QUIRE_TOOLS_NEED QUIET ${needed})
    endif()
    if(CMAKE_CXX_COMPILER AND QUIRE_TOOLS_NEED_FOUND)
      set(QUIRE_WITH_TOOLS ON)
    else()
      message(STATUS "the library alone: the tools need a C++ compiler, pkg-config, libunwind (on x86-64), libzstd, libdw and libelf")
    endif()
  endif()
endif()

set(QUIRE_WITH_BENCH ${QUIRE_BUILD_BENCH})
if(QUIRE_BUILD_BENCH STREQUAL "AUTO")
  set(QUIRE_WITH_BENCH ${QUIRE_WITH_TOOLS})
endif()

set(QUIRE_WITH_SHARED ON)
set(QUIRE_WITH_STATIC ON)
if(DEFINED BUILD_SHARED_LIBS OR NOT QUIRE_IS_TOP)
  set(QUIRE_WITH_SHARED ${BUILD_SHARED_LIBS})
  if(BUILD_SHARED_LIBS)
    set(QUIRE_WITH_STATIC OFF)
  endif()
endif()
# The replayer and the drivers are linked with the static one.
if(QUIRE_WITH_TOOLS OR QUIRE_WITH_BENCH OR QUIRE_BUILD_TESTS OR QUIRE_BUILD_FUZZ)
  set(QUIRE_WITH_STATIC ON)
endif()
