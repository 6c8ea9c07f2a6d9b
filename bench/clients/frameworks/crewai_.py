"""CrewAI with its defaults: a crew of one agent, whose task has a typed output."""
import os

from crewai import LLM, Agent, Crew, Task
from pydantic import BaseModel


class Sum(BaseModel):
    total: int


llm = LLM(model="openai/smol", base_url=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"], temperature=0, max_tokens=64)
agent = Agent(role="adder", goal="Add numbers.", backstory="You like numbers.", llm=llm, max_iter=1, verbose=False)
said = Crew(agents=[agent], tasks=[Task(description="What is 2 + 2?", expected_output="A number.", agent=agent)], verbose=False).kickoff()
assert said.raw, said
print(repr(said.raw[:20]), end=", ", flush=True)
typed = Crew(agents=[agent], tasks=[Task(description="What is 2 + 2?", expected_output="A number.", agent=agent, output_pydantic=Sum)], verbose=False).kickoff()
assert isinstance(typed.pydantic, Sum), typed
print(typed.pydantic, end="")
