# SPDX-License-Identifier: MIT
# libquire.a with its inner names made local: a program that is linked with it may have a panic() of its own.
#
#     many objects, hidden names global  --cc -r-->  one object  --objcopy --localize-hidden-->  public names only
#
# The compiler links, not ld alone: with -flto only it knows how to make code of the objects.
#
# Included beside the target quire_static, it adds the step to its build; the step runs this same file as a script.
if(CMAKE_SCRIPT_MODE_FILE)
  function(must)
    execute_process(COMMAND ${ARGV} RESULT_VARIABLE status)
    if(status)
      message(FATAL_ERROR "failed: ${ARGV}")
    endif()
  endfunction()
  must(${LD} -r -nostdlib -o quire.o -Wl,--whole-archive ${ARCHIVE} -Wl,--no-whole-archive)
  must(${OBJCOPY} --localize-hidden quire.o)
  file(REMOVE ${ARCHIVE})
  must(${AR} rcsD ${ARCHIVE} quire.o)
  file(REMOVE quire.o)
  return()
endif()

# What makes a program or a library of objects (sections that go, a start) is not for objects that stay such.
separate_arguments(flags NATIVE_COMMAND "${CMAKE_C_COMPILER_ARG1} ${CMAKE_C_FLAGS} ${CMAKE_SHARED_LINKER_FLAGS}")
list(FILTER flags EXCLUDE REGEX "^-static|^-pie$|^-shared$|--gc-sections|--icf|--print-gc-sections")
set(linker ${CMAKE_C_COMPILER} ${flags})
include(CheckCSourceCompiles)
set(CMAKE_REQUIRED_LINK_OPTIONS -r -nostdlib -flinker-output=nolto-rel)
check_c_source_compiles("const int one = 1;" QUIRE_HAS_NOLTO_REL) # gcc, but not with every linker
unset(CMAKE_REQUIRED_LINK_OPTIONS)
if(QUIRE_HAS_NOLTO_REL)
  list(APPEND linker -flinker-output=nolto-rel)
endif()
if(QUIRE_HAS_ZEROS)
  list(APPEND linker -Wl,-T,${QUIRE_ZEROS})
endif()
add_custom_command(TARGET quire_static POST_BUILD VERBATIM
  COMMAND ${CMAKE_COMMAND} -D ARCHIVE=$<TARGET_FILE:quire_static> "-DLD=${linker}" -D OBJCOPY=${CMAKE_OBJCOPY} -D AR=${CMAKE_AR}
          -P ${CMAKE_CURRENT_LIST_FILE}
  WORKING_DIRECTORY $<TARGET_FILE_DIR:quire_static>) # a place for each configuration: several may be built at once
