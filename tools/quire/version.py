# SPDX-License-Identifier: MIT
"""The tool's version; a test compares it with the one in the top CMakeLists.txt."""

VERSION = "0.2.0"
