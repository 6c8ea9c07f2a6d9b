"""recorded.py PROGRAM: runs a Python program and records its requests to the team and their answers in a file in $CLIENTS_LOG. Each is a
line of JSON: {"key", "request", "reply"}; a streamed answer has "events" in place of "reply".
"""
import json
import os
import runpy
import sys

import httpx2 as httpx

path = os.path.join(os.environ["CLIENTS_LOG"], f"{os.getpid()}.jsonl")


def write(request, text):
    line = {"key": request.headers["authorization"].removeprefix("Bearer "), "request": json.loads(request.content)}
    if line["request"].get("stream"):
        line["events"] = [json.loads(event[6:]) for event in text.split("\n\n") if event.startswith("data: {")]
    else:
        line["reply"] = json.loads(text)
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


class Tee(httpx.SyncByteStream, httpx.AsyncByteStream):
    """The body of a response, recorded after it has been read."""

    def __init__(self, request, body):
        self.request, self.body, self.read = request, body, b""

    def note(self):
        if self.read:
            write(self.request, self.read.decode())
        self.read = b""

    def __iter__(self):
        for piece in self.body:
            self.read += piece
            yield piece

    def close(self):
        self.body.close()
        self.note()

    async def __aiter__(self):
        async for piece in self.body:
            self.read += piece
            yield piece

    async def aclose(self):
        await self.body.aclose()
        self.note()


def follow(response):
    request = response.request
    if response.status_code == 200 and request.url.path.endswith("completions"):
        if response.is_closed:
            write(request, response.text)
        else:
            response.stream = Tee(request, response.stream)
    return response


send, send_async = httpx.Client.send, httpx.AsyncClient.send


async def follow_async(self, request, **options):
    return follow(await send_async(self, request, **options))


httpx.Client.send = lambda self, request, **options: follow(send(self, request, **options))
httpx.AsyncClient.send = follow_async
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
