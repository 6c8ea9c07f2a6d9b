"""The openai package, used in all its ways: sync, async, streaming, functions, a lost answer, equal calls at the same time."""
import asyncio
import json
import os

import httpx2 as httpx
from openai import AsyncOpenAI, BadRequestError, DefaultHttpxClient, OpenAI

client = OpenAI()
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


def user(text):
    return {"role": "user", "content": text}


def plan():
    """Holds a conversation of three turns: one with functions, whose message is sent back unchanged, and two streamed."""
    messages = [{"role": "developer", "content": "You answer word problems."}, user(question)]
    said = client.chat.completions.create(model="planner", messages=messages, tools=[SOLVER], logprobs=True).choices[0].message
    messages.append(said)
    messages += [{"role": "tool", "tool_call_id": call.id, "content": "7"} for call in said.tool_calls or []]
    if not said.tool_calls:
        messages.append(user("And then?"))
    chunks = list(client.chat.completions.create(model="planner", messages=messages, tools=[SOLVER], stream=True, max_tokens=12))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    messages += [{"role": "assistant", "content": text}, user([{"type": "text", "text": "The number alone."}])]
    with client.chat.completions.stream(model="planner", messages=messages, max_completion_tokens=12,
                                        stream_options={"include_usage": True}) as stream:
        for _ in stream:
            pass
        last = stream.current_completion_snapshot
    assert last.usage.completion_tokens <= 12, last
    return last.choices[0].message.content or ""


async def solve():
    """Makes calls at the same time: with different tasks, and with equal tasks that a header distinguishes."""
    async with AsyncOpenAI() as team:
        async def ask(task, ordinal):
            reply = await team.chat.completions.create(model="solver", messages=[user(task)], logprobs=True, stop=["###"],
                                                       extra_headers={"X-Mgrpo-Call": str(ordinal)})
            return reply.id
        ids = await asyncio.gather(ask(question, 0), ask(question, 1), ask("What is 2 + 2?", 0))
        stream = await team.chat.completions.create(model="solver", messages=[user("Count to 5.")], stream=True)
        ids += [chunk.id async for chunk in stream][:1]
    assert len(set(ids)) == 4, ids


class Lossy(httpx.HTTPTransport):
    """A connection that breaks after the first answer was received."""

    answers = []

    def handle_request(self, request):
        response = super().handle_request(request)
        self.answers.append(json.loads(response.read()))
        if len(self.answers) == 1:
            raise httpx.ReadError("the connection broke", request=request)
        return response


def repeat():
    """If an answer is lost, the package repeats the request and gets the lost answer."""
    lossy = OpenAI(http_client=DefaultHttpxClient(transport=Lossy()))
    reply = lossy.chat.completions.create(model="solver", messages=[user("Is anybody there?")])
    first, second = Lossy.answers
    assert first["id"] == second["id"] == reply.id and first["choices"] == second["choices"], Lossy.answers


def complete():
    """Continues a text."""
    prompt = "One, two, three,"
    for _ in range(2):
        choice = client.completions.create(model="solver", prompt=prompt, max_tokens=6, logprobs=1).choices[0]
        prompt += choice.text + " and"


assert [model.id for model in client.models.list()] == ["planner", "solver"]
try:  # an evaluation accepts it
    client.chat.completions.create(model="planner", messages=[user("?")], temperature=0.1)
except BadRequestError as refused:
    assert refused.param == "temperature", refused
answer = plan()
asyncio.run(solve())
repeat()
complete()
print("this line is no result")
print(json.dumps({"answer": answer}))
