"""LangChain's with_structured_output with each of its methods, LangGraph's agent and deepagents, with their defaults."""
import os

from deepagents import create_deep_agent
from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

os.environ["LANGSMITH_TRACING"] = "false"


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=24)
    inhabitants: int = Field(ge=0, le=100_000_000)


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


model = ChatOpenAI(model="smol", temperature=0, max_tokens=96)
for method in "json_schema", "function_calling":
    city = model.with_structured_output(City, method=method).invoke("Tell me about Oslo.")
    assert isinstance(city, City), city
    print(repr(city.name), end=", ", flush=True)
responses = ChatOpenAI(model="smol", temperature=0, max_tokens=96, use_responses_api=True)
assert isinstance(responses.with_structured_output(City).invoke("Tell me about Oslo."), City)
called = model.bind_tools([add], tool_choice="add", parallel_tool_calls=False).invoke("2 + 2?").tool_calls
assert [c["name"] for c in called] == ["add"], called
print(f"add({called[0]['args']})", end=", ", flush=True)
said = create_agent(model, [add]).invoke({"messages": [("user", "What is 2 + 2?")]})["messages"][-1]
assert said.type == "ai", said
print(f"LangGraph answered {said.text[:20]!r}", end=", ", flush=True)
deep = create_deep_agent(model=ChatOpenAI(model="smol", temperature=0, max_tokens=24, use_responses_api=True), tools=[add])
said = deep.invoke({"messages": [("user", "What is 2 + 2?")]})["messages"][-1]
assert said.type == "ai", said
print(f"deepagents answered {said.text[:20]!r}", end="")
