# SPDX-License-Identifier: MIT
# The programs that read files which others wrote (quire-analyse, quire-plan, quire-replay) as one library, for what runs them many times within
# one process: test/mangle, fuzz. main() of each has a name of its own. What warnings there are to see the programs' own build shows (CMakeLists.txt).
find_package(PkgConfig REQUIRED)
pkg_check_modules(ZSTD REQUIRED IMPORTED_TARGET libzstd)
pkg_check_modules(DW REQUIRED IMPORTED_TARGET libdw libelf)

set(native ${PROJECT_SOURCE_DIR}/tools/native)
file(GLOB readers CONFIGURE_DEPENDS ${native}/trace/*.c ${native}/analyse/*.cc ${native}/replay/*.c)
list(REMOVE_ITEM readers ${native}/replay/demo.c)
add_library(quire_readers OBJECT ${readers})
target_include_directories(quire_readers PRIVATE ${native})
# The files in C++ together, in two groups, as some have static names in common (those in C have many): a third less to compile.
set_target_properties(quire_readers PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
file(GLOB analysers ${native}/analyse/*.cc)
set_source_files_properties(${analysers} PROPERTIES UNITY_GROUP analyse)
set_source_files_properties(${native}/analyse/sites.cc ${native}/analyse/profile.cc ${native}/analyse/profile_write.cc PROPERTIES UNITY_GROUP profile)
target_link_libraries(quire_readers PRIVATE quire_options PkgConfig::ZSTD PkgConfig::DW)
set_source_files_properties(${native}/analyse/main.cc PROPERTIES COMPILE_DEFINITIONS main=quire_analyse_main)
set_source_files_properties(${native}/replay/plan_main.c PROPERTIES COMPILE_DEFINITIONS main=quire_plan_main)
set_source_files_properties(${native}/replay/replay_main.c PROPERTIES COMPILE_DEFINITIONS main=quire_replay_main)
# Their memory comes from the heap there, where AddressSanitizer sees its ends: who links this defines both.
set_source_files_properties(${native}/replay/stream.c PROPERTIES COMPILE_DEFINITIONS "mmap=readers_mmap;munmap=readers_munmap")
