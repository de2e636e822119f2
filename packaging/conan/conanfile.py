# SPDX-License-Identifier: MIT
"""conanfile - Quire's library as a Conan package: `conan create packaging/conan` in a checkout.

The version is CMakeLists.txt's.  What consumers find is what is installed anyhow: quire::quire by find_package(quire), quire.pc.
"""

import os
import re

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load


class QuireConan(ConanFile):
    name = "quire"
    description = "Memory allocators for programs that know something malloc cannot"
    license = "MIT"
    topics = ("allocator", "arena", "slab", "malloc")
    package_type = "library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"shared": [True, False], "fPIC": [True, False]}
    default_options = {"shared": False, "fPIC": True}

    def set_version(self):
        text = load(self, os.path.join(self.recipe_folder, "..", "..", "CMakeLists.txt"))
        self.version = re.search(r"project\(quire VERSION ([\d.]+)", text).group(1)

    def export_sources(self):
        root = os.path.join(self.recipe_folder, "..", "..")
        for pattern in ("CMakeLists.txt", "*.md", "LICENSE", "cmake/*", "include/*", "src/*", "packaging/*.in"):
            copy(self, pattern, root, self.export_sources_folder, excludes=("build/*", ".venv/*", "doc/*"))

    def configure(self):
        self.settings.rm_safe("compiler.cppstd")
        self.settings.rm_safe("compiler.libcxx")
        if self.options.shared:
            self.options.rm_safe("fPIC")

    def validate(self):
        if self.settings.os != "Linux":
            raise ConanInvalidConfiguration("Quire is for Linux")

    def layout(self):
        cmake_layout(self)

    def generate(self):
        toolchain = CMakeToolchain(self)
        for part in ("TOOLS", "BENCH"):
            toolchain.cache_variables[f"QUIRE_BUILD_{part}"] = "OFF"
        toolchain.cache_variables["QUIRE_SCDOC"] = "OFF"  # the manual asks the tool for its options
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()

    def package_info(self):
        self.cpp_info.set_property("cmake_find_mode", "none")  # the package's own quire-config.cmake
        self.cpp_info.builddirs = [os.path.join("lib", "cmake", "quire")]
        self.cpp_info.set_property("pkg_config_name", "none")
        self.cpp_info.libs = ["quire"]
        if not self.options.shared:
            self.cpp_info.system_libs = ["pthread"]
            self.cpp_info.exelinkflags = self.cpp_info.sharedlinkflags = ["-Wl,-z,nodelete"]
