"""pydantic-ai with its defaults: typed outputs by a function, by a schema and as JSON in a text, by chats and by responses; a stream."""
import asyncio

from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel


class City(BaseModel):
    name: str = Field(max_length=24)
    inhabitants: int = Field(ge=0, le=100_000_000)
    capital: bool | None = None


async def main():
    question, settings = "Tell me about Oslo.", {"temperature": 0, "max_tokens": 160, "parallel_tool_calls": False}
    for model in OpenAIChatModel("smol"), OpenAIResponsesModel("smol"):
        for output in City, NativeOutput(City):
            city = (await Agent(model, output_type=output, model_settings=settings).run(question)).output
            assert isinstance(city, City), city
            print(repr(city.name), end=", ", flush=True)
        async with Agent(model, model_settings={"temperature": 0, "max_tokens": 16}).run_stream(question) as result:
            pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
            assert len(pieces) > 1, pieces
        print(f"streamed in {len(pieces)} pieces", end="; ", flush=True)


asyncio.run(main())
