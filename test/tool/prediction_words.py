# SPDX-License-Identifier: MIT
"""
prediction_words.py - words that can be said, drawn for the texts of prediction_inputs.py and prediction_inputs_more.py.
"""

SYLLABLES = "ba co di fe gu ha jo ki lu me no pa qui ro sa te vu wi xe zo".split()


def word(draw, longest=4):
    """A word that can be said."""
    return "".join(draw.choice(SYLLABLES) for _ in range(draw.randint(2, longest)))


def words(draw, number):
    """So many of them, as a text."""
    return " ".join(word(draw) for _ in range(number))
