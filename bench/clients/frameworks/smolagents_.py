"""smolagents' ToolCallingAgent, which calls a function at each step, and its CodeAgent, with their defaults."""
import os

from smolagents import AgentError, CodeAgent, LogLevel, OpenAIServerModel, ToolCallingAgent, tool


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: the first number
        b: the second number
    """
    return a + b


model = OpenAIServerModel(model_id="smol", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"], temperature=0,
                          parallel_tool_calls=False, max_tokens=96)
agent = ToolCallingAgent(tools=[add], model=model, max_steps=2, verbosity_level=LogLevel.OFF)
agent.run("What is 2 + 2?")
calls = [call.name for step in agent.memory.steps for call in getattr(step, "tool_calls", None) or []]
assert calls, agent.memory.steps
print(f"calls {calls}", end=", ", flush=True)
coder = CodeAgent(tools=[add], model=model, max_steps=1, verbosity_level=LogLevel.OFF)
try:
    said = coder.run("What is 2 + 2?")
except AgentError as wrong:  # a small model's Python
    said = wrong
print(f"code: {str(said)[:40]!r}", end="")
