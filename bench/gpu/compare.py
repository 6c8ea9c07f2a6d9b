#!/usr/bin/env python3
"""compare.py RUN RUN LOSS GAP: fails unless two runs of one small team on different devices learnt alike: losses of the cold
start, on the same demonstrations from the same weights, that are at most LOSS (relative) apart, and samplers that are at most GAP
(nats) from their trainers. Rollouts are not compared: a rounding that differs samples another token."""
import json
import sys


def read(run):
    """loss of each agent's cold start, and the largest gap_mean of its steps"""
    loss, gap = {}, {}
    with open(run + "/metrics.jsonl", encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            if row["kind"] == "cold_start":
                loss[row["agent"]] = row["values"]["loss"]
            elif row["kind"] == "step" and "gap_mean" in row["values"]:  # a step may have no trajectory of an agent
                gap[row["agent"]] = max(gap.get(row["agent"], 0), row["values"]["gap_mean"])
    return loss, gap


def main():
    (loss, gap), (want, other), most, far = read(sys.argv[1]), read(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
    wrong = [] if want and loss.keys() == want.keys() == gap.keys() == other.keys() else ["a run lacks records of an agent"]
    for agent in loss.keys() & want.keys():
        print(f"{agent}: loss of the cold start {loss[agent]:.6f} and {want[agent]:.6f}, gap {gap.get(agent)} and {other.get(agent)}")
        if not abs(loss[agent] - want[agent]) <= most * want[agent]:
            wrong.append(f"{agent}: the losses are more than {most:.0%} apart")
    wrong += [f"{agent}: sampler and trainer are {g} nats apart" for side in (gap, other) for agent, g in side.items() if not g <= far]
    sys.exit("\n".join(wrong) or 0)


main()
