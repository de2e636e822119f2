# SPDX-License-Identifier: MIT
"""bench - the tables of `quire bench`: what is run (one file a table), its words (*_text.py), and what all share (run, figures, chart)."""
