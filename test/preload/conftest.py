# SPDX-License-Identifier: MIT
"""conftest - the fixtures of preload_kit for every test here."""

from preload_kit import build  # noqa: F401 (a fixture)
