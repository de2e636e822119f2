# SPDX-License-Identifier: MIT
# The library alone, from the checkout that QUIRE_SOURCE names (an overlay port's packager writes vcpkg_from_git here).
if(NOT DEFINED ENV{QUIRE_SOURCE})
  message(FATAL_ERROR "QUIRE_SOURCE in the environment names the source; let it pass by VCPKG_KEEP_ENV_VARS=QUIRE_SOURCE")
endif()
set(SOURCE_PATH "$ENV{QUIRE_SOURCE}")

vcpkg_cmake_configure(SOURCE_PATH "${SOURCE_PATH}" OPTIONS -DQUIRE_BUILD_TOOLS=OFF -DQUIRE_BUILD_BENCH=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/quire)
vcpkg_fixup_pkgconfig()
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
