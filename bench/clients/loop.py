"""The conversations of gsm8k.yaml through the gateway, in the same way as mgrpo holds them itself: a planner, a solver, a calculator.

If $STALL is set, the program makes its first call, writes its process id to the file of that name, and hangs.
"""
import json
import os
import signal

from openai import BadRequestError, OpenAI

from arithmetic import DESCRIPTION, SCHEMA, calculate

client = OpenAI()
MAX_CALLS = 2  # max_calls_per_turn of both agents
MAX_NEW = {"planner": 96, "solver": 64}  # max_new_tokens
# White space as Go defines it.
SPACE = "\t\n\v\f\r \u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
PROMPT = {
    "planner": "You answer word problems. Hand the problem to the solver, and reply with the number alone.",
    "solver": "You solve word problems with the calculator. Reply with the number alone.",
}
TASK = {
    "type": "object",
    "properties": {"task": {"type": "string", "description": "What to do, complete in itself: the helper sees nothing else."}},
    "required": ["task"],
}


def function(name, description, parameters):
    return [{"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}]


TOOLS = {"planner": function("solver", "Solves a word problem and returns the number.", TASK), "solver": function("calculator", DESCRIPTION, SCHEMA)}


def ask(agent, messages):
    """Returns a turn, or the limit that ended the conversation."""
    try:
        reply = client.chat.completions.create(model=agent, messages=messages, tools=TOOLS[agent])
    except BadRequestError as refused:
        limits = {"turns": "turns", "context_length_exceeded": "tokens"}
        if refused.code not in limits:
            raise
        return None, limits[refused.code]
    if reply.choices[0].finish_reason == "length":
        return None, "length" if reply.usage.completion_tokens == MAX_NEW[agent] else "tokens"
    return reply.choices[0].message, None


def calls_of(said):
    """Returns the calls of a turn in the order of the text: id, name, arguments, and the error of a call that cannot be executed."""
    calls = [{"id": c.id, "name": c.function.name, "arguments": c.function.arguments} for c in said.tool_calls or []]
    for i, written in enumerate((said.model_extra or {}).get("mgrpo", {}).get("calls", [])):
        if i == len(calls):
            calls.append({"id": "", "name": written["name"]})
        calls[i]["problem"] = written.get("problem")
    return calls


def carry_out(call):
    if call.get("problem"):
        return "error: " + call["problem"]
    arguments = json.loads(call["arguments"])
    if call["name"] == "solver":
        return converse("solver", arguments["task"])[0]
    try:
        return calculate(arguments["expression"])
    except ValueError as problem:
        return f"error: {problem}"


def converse(agent, task):
    """Returns an agent's answer to a task, and whether it has one."""
    messages = [{"role": "system", "content": PROMPT[agent]}, {"role": "user", "content": task}]
    while True:
        said, why = ask(agent, messages)
        if why:
            return f"(no answer: {why})", False
        calls = calls_of(said)
        if not calls:
            text = (said.content or "").strip(SPACE)
            return (text, True) if text else ("(no answer: it is empty)", False)
        messages.append(said)
        for call in calls[:MAX_CALLS + 1]:  # the reply to one more call informs the model about calls above the limit
            messages.append({"role": "tool", "tool_call_id": call["id"], "name": call["name"], "content": carry_out(call)})


question = json.loads(os.environ["MGRPO_QUERY"])["question"]
if stall := os.environ.get("STALL"):
    ask("planner", [{"role": "system", "content": PROMPT["planner"]}, {"role": "user", "content": question}])
    with open(stall + ".part", "w", encoding="utf-8") as file:
        file.write(str(os.getpid()))
    os.rename(stall + ".part", stall)
    signal.pause()
answer, valid = converse("planner", question)
print(json.dumps({"answer": answer} if valid else {"answer": "", "format": False}))
