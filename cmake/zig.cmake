# SPDX-License-Identifier: MIT
# Building with zig's C and C++ compiler, which brings musl, and glibc as it was in any release, each with a C++ library (PyPI: pip install ziglang):
#
#     cmake --toolchain cmake/zig.cmake -DQUIRE_ZIG=$PWD/.venv/bin/python3 -DQUIRE_ZIG_TARGET=x86_64-linux-musl ...     or x86_64-linux-gnu.2.28
#
# QUIRE_ZIG: the Python that has ziglang.
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES QUIRE_ZIG QUIRE_ZIG_TARGET)
set(CMAKE_C_COMPILER ${QUIRE_ZIG} -m ziglang cc -target ${QUIRE_ZIG_TARGET} -fno-sanitize=undefined)
set(CMAKE_CXX_COMPILER ${QUIRE_ZIG} -m ziglang c++ -target ${QUIRE_ZIG_TARGET} -fno-sanitize=undefined)
set(QUIRE_MALLOC_LINK -Wl,-Bsymbolic) # its linker knows neither -Bsymbolic-functions nor -z initfirst, which matters to children of a fork
foreach(kind EXE SHARED)
  set(CMAKE_${kind}_LINKER_FLAGS_INIT -Wl,--build-id=sha1) # plans know programs by it
endforeach()
