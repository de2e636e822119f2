# SPDX-License-Identifier: MIT
"""report - the page of `quire report` and its exports: inputs, one file a section, plots, templates."""
