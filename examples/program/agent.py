"""An agent program: a planner that may ask a solver, written with the openai package.

mgrpo starts it once for each rollout. Every call of an agent becomes a trajectory that the agent is trained on.
"""
import json
import os
import sys

from openai import BadRequestError, OpenAI

client = OpenAI()  # reads OPENAI_BASE_URL and OPENAI_API_KEY, which mgrpo sets
question = json.loads(os.environ["MGRPO_QUERY"])["question"]

SOLVER = {
    "type": "function",
    "function": {
        "name": "solver",
        "description": "Solves a word problem and returns the number.",
        "parameters": {
            "type": "object",
            "properties": {"task": {"type": "string", "description": "What to do, complete in itself: the helper sees nothing else."}},
            "required": ["task"],
        },
    },
}


def ask(model, messages, **options):
    """Samples one turn of an agent. The model's name is the name of the agent."""
    return client.chat.completions.create(model=model, messages=messages, **options).choices[0].message


def solve(task):
    """Calls the sub-agent, which has its own conversation."""
    system = "You solve word problems. Reply with the number alone."
    return ask("solver", [{"role": "system", "content": system}, {"role": "user", "content": task}]).content or ""


def call(tool):
    """Returns the planner's tool message for a call. A small model's call may be nonsense."""
    try:
        return solve(json.loads(tool.function.arguments)["task"])
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        return f"error: {problem!r}"


def plan(turns=3):
    messages = [
        {"role": "system", "content": "You answer word problems. Hand the problem to the solver, and reply with the number alone."},
        {"role": "user", "content": question},
    ]
    for _ in range(turns):
        said = ask("planner", messages, tools=[SOLVER])
        if not said.tool_calls:
            return said.content or ""
        messages.append(said)
        for tool in said.tool_calls:
            messages.append({"role": "tool", "tool_call_id": tool.id, "content": call(tool)})
    return ""


try:
    print(json.dumps({"answer": plan()}))  # the last line is the result: the task verifies the answer
except BadRequestError as limit:  # a conversation that became too long
    print(json.dumps({"answer": "", "format": False}))
    print(limit, file=sys.stderr)
