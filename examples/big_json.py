#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""big_json - prints about 5 MB of JSON, the same each time: something for `./quire try -- jq . big.json` to read."""

import json
import random
import sys

draw = random.Random(1)
people = [
    {"id": i, "name": f"person {draw.randrange(10**6)}", "tags": [draw.choice("abcdef") * 4 for _ in range(5)], "scores": [draw.random() for _ in range(4)]}
    for i in range(26000)
]
json.dump(people, sys.stdout)
