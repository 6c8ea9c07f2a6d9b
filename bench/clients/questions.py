"""questions.py GSM8K FOLDER: writes the shortest questions of GSM8K, and conversations that teach a random model to call.

The planner passes each question on in the same words, and the solver calls its calculator; both repeat the reply that they get.
"""
import json
import os
import sys


def turn(role, content):
    return {"role": role, "content": content}


def call(name, arguments):
    return turn("assistant", "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>")


source, folder = sys.argv[1:]
with open(source, encoding="utf-8") as file:
    rows = sorted(map(json.loads, file), key=lambda row: len(row["question"]))[:6]
os.makedirs(folder, exist_ok=True)
with open(os.path.join(folder, "train.jsonl"), "w", encoding="utf-8") as questions, \
        open(os.path.join(folder, "demonstrations.jsonl"), "w", encoding="utf-8") as demonstrations:
    for row in rows:
        print(json.dumps(row), file=questions)
        number = row["answer"].split("#### ")[1]
        end = [turn("tool", number), turn("assistant", number)]
        task = "Work it out."
        print(json.dumps({"agent": "planner", "messages": [turn("user", row["question"]), call("solver", {"task": task}), *end]}), file=demonstrations)
        print(json.dumps({"agent": "solver", "messages": [turn("user", task), call("calculator", {"expression": f"{number} + 0"}), *end]}), file=demonstrations)
