# SPDX-License-Identifier: MIT
"""advise - from a trace to advice: classes, the mix that is replayed, evidence, several traces, wrappers."""
