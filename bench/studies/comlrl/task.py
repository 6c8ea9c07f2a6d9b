"""The task that mgrpo and CoMLRL are compared on.

A query is four different digits. The agent `largest` names the largest, the agent `smallest` the smallest. Both get the same reward: half
a point for each right digit.
"""
import random

AGENTS = {"largest": max, "smallest": min}
END, USER, REPLY = "<end>", "<user>", "<reply>"


def questions(seed, count):
    """Returns count different questions, such as "3 9 1 4"."""
    draw, found = random.Random(seed), {}
    while len(found) < count:
        found[" ".join(map(str, draw.sample(range(10), 4)))] = None
    return list(found)


def prompt(question):
    """Returns the prompt as the chat template prints it."""
    return f"{USER} {question} {REPLY}"


def answer(agent, question):
    return AGENTS[agent](question.split())


def reward(question, answers):
    """Returns the team's reward for the agents' answers."""
    return sum(answer(agent, question) == given.strip() for agent, given in answers.items()) / len(AGENTS)
