"""litellm with its defaults: a chat, a stream, a schema, a function that must be called, responses."""
import json
import os

import litellm
from pydantic import BaseModel

litellm.suppress_debug_info = True
ask = {"model": "openai/smol", "api_base": os.environ["OPENAI_BASE_URL"], "messages": [{"role": "user", "content": "What is 2 + 2?"}], "temperature": 0, "max_tokens": 160}


class Sum(BaseModel):
    total: int


ADD = {"type": "function", "function": {"name": "add", "description": "Add two numbers.", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}}}
whole = litellm.completion(**ask | {"max_tokens": 16}).choices[0].message.content
pieces = [chunk.choices[0].delta.content or "" for chunk in litellm.completion(**ask | {"max_tokens": 16}, stream=True)]
assert whole and len(pieces) > 2, (whole, pieces)
print(f"streamed in {len(pieces)} pieces", end=", ", flush=True)
total = Sum.model_validate_json(litellm.completion(**ask, response_format=Sum).choices[0].message.content)
print(total, end=", ", flush=True)
call = litellm.completion(**ask, tools=[ADD], tool_choice="required", parallel_tool_calls=False).choices[0].message.tool_calls[0].function
assert call.name == "add" and {"a", "b"} <= json.loads(call.arguments).keys(), call
response = litellm.responses(model="openai/smol", api_base=ask["api_base"], input="What is 2 + 2?", max_output_tokens=16)
assert response.output[0].content[0].text, response
print(f"add({call.arguments})", end="")
