# SPDX-License-Identifier: MIT
"""live - what a running process shows of itself, and what a core file holds."""
