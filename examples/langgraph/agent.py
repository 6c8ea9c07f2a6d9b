"""A LangGraph team: planner and solver are two nodes of a graph, each with its own model.

mgrpo starts it once for each rollout. Every call of a model becomes a part of a trajectory that the model is trained on.
"""
import json
import os
import sys
from typing import Annotated

from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from openai import BadRequestError


@tool
def solver(task: Annotated[str, "What to do, complete in itself: the helper sees nothing else."]) -> str:
    """Solves a word problem and returns the number."""
    system = SystemMessage("You solve word problems. Reply with the number alone.")
    return SOLVER.invoke([system, HumanMessage(task)]).text


PLANNER = ChatOpenAI(model="planner").bind_tools([solver])  # the model's name is the name of the agent
SOLVER = ChatOpenAI(model="solver")


def plan(state: MessagesState):
    return {"messages": [PLANNER.invoke(state["messages"])]}


def solve(state: MessagesState):
    """Answers the planner's calls. A small model's call may be nonsense."""
    answers = []
    for call in state["messages"][-1].tool_calls:
        task = call["args"].get("task")
        text = solver.invoke({"task": task}) if isinstance(task, str) else "error: the solver needs a task"
        answers.append(ToolMessage(text, tool_call_id=call["id"]))
    return {"messages": answers}


def after_planner(state: MessagesState):
    return "solver" if state["messages"][-1].tool_calls else END


graph = StateGraph(MessagesState)
graph.add_node("planner", plan)
graph.add_node("solver", solve)
graph.add_edge(START, "planner")
graph.add_conditional_edges("planner", after_planner, ["solver", END])
graph.add_edge("solver", "planner")
team = graph.compile()

question = json.loads(os.environ["MGRPO_QUERY"])["question"]
system = SystemMessage("You answer word problems. Hand the problem to the solver, and reply with the number alone.")
try:
    last = team.invoke({"messages": [system, HumanMessage(question)]})["messages"][-1]
    print(json.dumps({"answer": last.text}))  # the last line is the result: the task verifies the answer
except BadRequestError as limit:  # a conversation that became too long
    print(json.dumps({"answer": "", "format": False}))
    print(limit, file=sys.stderr)
