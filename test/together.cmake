# SPDX-License-Identifier: MIT
# Writes one C++ file of several test files: what they include, then each in a namespace of its own.
#
#   cmake -DINTO=FILE -DFOLDER=/.../unit -DNAMES=a.cc,b.cc -P together.cmake
#
#   #include <gtest/gtest.h>      what any of them includes; every header of ours is guarded, so
#   #include "base/bits.h"        that the same lines inside the namespaces add nothing
#   namespace together_0 {
#   #include "/.../arena_test.cc"
#   }
#
# Templates of the standard library and of GoogleTest, which are most of what the compiler does for a file of tests, are
# made once for all of them.  The namespaces keep apart what two files call alike (a Heap, a page).
# Not here: which files (CMakeLists.txt).
string(REPLACE "," ";" NAMES "${NAMES}")
set(body "")
set(index 0)
foreach(name IN LISTS NAMES)
  set(source ${FOLDER}/${name})
  file(STRINGS ${source} lines REGEX "^#include ")
  list(APPEND includes ${lines})
  string(APPEND body "namespace together_${index} {\n#include \"${source}\"\n}\n")
  math(EXPR index "${index} + 1")
endforeach()
list(REMOVE_DUPLICATES includes)
list(JOIN includes "\n" head)
set(text "// Made by test/together.cmake.\n${head}\n${body}")
if(EXISTS ${INTO})
  file(READ ${INTO} old)
endif()
if(NOT text STREQUAL "${old}")
  file(WRITE ${INTO} "${text}")
endif()
