"""Records in bench/results/models.json which models other programs agreed on. bench/document writes a table of docs/models.md from it."""
import importlib.metadata
import json
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "models.json"


def record(program, package, found):
    """Adds to the results the names of models that agreed with a program. A new version of its package starts a new list."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    version = importlib.metadata.version(package)
    kept = results.get(program, {})
    if kept.get("version") != version:
        kept = {"version": version, "found": []}
    kept["found"] = sorted({*kept["found"], *found})
    results[program] = kept
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
