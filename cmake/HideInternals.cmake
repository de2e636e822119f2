# SPDX-License-Identifier: MIT
# libquire.a with its inner names made local: a program that is linked with it may have a panic() of its own.
#
#     many objects, hidden names global  --ld -r-->  one object  --objcopy --localize-hidden-->  public names only
#
# Included beside the target quire_static, it adds the step to its build; the step runs this same file as a script.
if(CMAKE_SCRIPT_MODE_FILE)
  execute_process(COMMAND ${LD} -r -o quire.o --whole-archive ${ARCHIVE} COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ${OBJCOPY} --localize-hidden quire.o COMMAND_ERROR_IS_FATAL ANY)
  file(REMOVE ${ARCHIVE})
  execute_process(COMMAND ${AR} rcsD ${ARCHIVE} quire.o COMMAND_ERROR_IS_FATAL ANY)
  file(REMOVE quire.o)
  return()
endif()

add_custom_command(TARGET quire_static POST_BUILD VERBATIM
  COMMAND ${CMAKE_COMMAND} -D ARCHIVE=$<TARGET_FILE:quire_static> -D LD=${CMAKE_LINKER} -D OBJCOPY=${CMAKE_OBJCOPY} -D AR=${CMAKE_AR}
          -P ${CMAKE_CURRENT_LIST_FILE}
  WORKING_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR})
