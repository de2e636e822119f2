# SPDX-License-Identifier: MIT
"""frontdoor - what ./quire does before the tool runs: packages (needs), Python (venv), building
(build), tests (suite); how it says so (say, progress)."""
