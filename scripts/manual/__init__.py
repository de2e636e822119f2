# SPDX-License-Identifier: MIT
"""manual - the manual pages: doc/man/*.scd, with what other files already say put in."""
