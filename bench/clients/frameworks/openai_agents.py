"""openai-agents with its defaults, over /v1/responses: a function that must be called, a typed output, a stream."""
import asyncio

from agents import Agent, ModelSettings, Runner, function_tool, set_tracing_disabled
from pydantic import BaseModel

set_tracing_disabled(True)
called = []


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    called.append((a, b))
    return a + b


class Sum(BaseModel):
    total: int


async def main():
    settings = ModelSettings(tool_choice="required", parallel_tool_calls=False, temperature=0, max_tokens=512, store=False)
    agent = Agent(name="adder", model="smol", instructions="You add numbers.", tools=[add], model_settings=settings)
    result = await Runner.run(agent, "What is 2 + 2?", max_turns=6)
    assert called and isinstance(result.final_output, str), result
    print(f"called add{called[0]}", end=", ", flush=True)
    typed = Agent(name="typed", model="smol", output_type=Sum, model_settings=ModelSettings(temperature=0, max_tokens=512))
    total = (await Runner.run(typed, "What is 2 + 2?")).final_output
    assert isinstance(total, Sum), total
    print(total, end=", ", flush=True)
    streamed = Runner.run_streamed(Agent(name="writer", model="smol", model_settings=ModelSettings(temperature=0, max_tokens=512)), "Count to five.")
    text = ""
    async for event in streamed.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            text += event.data.delta
    assert text and text == streamed.final_output, (text, streamed.final_output)
    print(f"streamed {text[:20]!r}", end="")


asyncio.run(main())
