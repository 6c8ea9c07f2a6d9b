"""The reward of the flags game: mgrpo writes a JSON line for each answer, and this program writes a JSON line with its score.

docs/verifiers.md lists the fields of a line. Everything but scores goes to standard error.
"""
import json
import re
import sys


def score(case):
    """Returns 1 for an accepted colour in at most the allowed number of words, 0.5 in more words, else 0."""
    words = re.findall(r"[a-z]+", case["answer"].lower())
    if not any(colour in words for colour in case["accepted"]):
        return 0.0
    return 1.0 if len(words) <= case["row"]["words"] else 0.5


scored = 0
for line in sys.stdin:
    case = json.loads(line)
    try:
        reply = {"id": case["id"], "score": score(case)}
    except (KeyError, TypeError) as wrong:
        reply = {"id": case["id"], "error": f"row {case['row']}: {wrong!r}"}
    print(json.dumps(reply), flush=True)
    scored += 1
print(f"reward.py: {scored} answers scored", file=sys.stderr)
