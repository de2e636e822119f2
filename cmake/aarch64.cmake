# SPDX-License-Identifier: MIT
# Building for arm64 on another Debian machine, and running what was built under qemu-user:
#
#     apt-get install g++-aarch64-linux-gnu qemu-user
#     cmake --toolchain cmake/aarch64.cmake -DCMAKE_SYSROOT=ROOT ...
#
# ROOT: an arm64 Debian's file system, for the libraries that the tools are linked with; without it the compiler's own libc and no more.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(root /usr/aarch64-linux-gnu)
if(CMAKE_SYSROOT)
  set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
  set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
  set(root ${CMAKE_SYSROOT})
  set(ENV{PKG_CONFIG_SYSROOT_DIR} ${root})
  set(ENV{PKG_CONFIG_LIBDIR} ${root}/usr/lib/aarch64-linux-gnu/pkgconfig:${root}/usr/share/pkgconfig)
endif()
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L ${root})
