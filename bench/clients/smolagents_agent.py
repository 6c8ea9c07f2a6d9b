"""smolagents: a ToolCallingAgent that manages another one. Both use the team's models through OpenAIServerModel."""
import json
import os
import sys

from smolagents import AgentError, LogLevel, OpenAIServerModel, ToolCallingAgent


def model(name):
    # The package requests tool_choice "required". Models learn this in training; this one has only just begun.
    return OpenAIServerModel(model_id=name, api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"], tool_choice="auto")


question = json.loads(os.environ["MGRPO_QUERY"])["question"]
solver = ToolCallingAgent(tools=[], model=model("solver"), name="solver", description="Solves a word problem and returns the number.",
                          max_steps=2, verbosity_level=LogLevel.OFF)
planner = ToolCallingAgent(tools=[], model=model("planner"), managed_agents=[solver], max_steps=2, verbosity_level=LogLevel.OFF)
try:
    print(json.dumps({"answer": str(solver.run(question)) + str(planner.run(question))}))
except AgentError as limit:  # a conversation that became too long
    print(limit, file=sys.stderr)
    print(json.dumps({"answer": "", "format": False}))
