# SPDX-License-Identifier: MIT
"""patch - the change of a call site as code: C, C++, and the line itself as a diff."""
