"""Renders the templates of cases.jsonl again with transformers' Jinja2 environment, in place.

    pip install transformers==5.17.0 jinja2==3.1.6 && python generate.py

The first line holds the variables; each further line a template and its text or error.
"""

import json
import pathlib

from transformers.utils.chat_template_utils import _compile_jinja_template

path = pathlib.Path(__file__).with_name("cases.jsonl")
rows = [json.loads(line) for line in path.read_text().splitlines()]
variables = rows[0]["variables"]
with path.open("w") as out:
    out.write(json.dumps(rows[0]) + "\n")
    for row in rows[1:]:
        case = {"template": row["template"]}
        try:
            case["text"] = _compile_jinja_template(row["template"]).render(**variables)
        except Exception as error:
            case["error"] = f"{type(error).__name__}: {error}"[:120]
        out.write(json.dumps(case) + "\n")
