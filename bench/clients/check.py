"""check.py RUN LOG TOKENIZER ROLLOUTS: compares the files of a run with the answers that its clients received.

RUN is the run's folder, LOG the folder with the clients' records (recorded.py), TOKENIZER a tokenizer.json, ROLLOUTS the run's number of
rollouts. Each answer must be a sampled turn of a stored row of its agent and rollout, with the same tokens, text and log-probs. Each
sampled turn must be an answer. d_k must be the number of conversations that the clients began.
"""
import base64
import collections
import glob
import json
import os
import re
import sys

MAIN, SUBS = "planner", ["solver"]


def lines(pattern):
    for path in sorted(glob.glob(pattern)):
        with open(path, encoding="utf-8") as file:
            yield from map(json.loads, file)


class Tokenizer:
    """Byte-level BPE, from ids to texts."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            files = json.load(file)
        shown = [*range(33, 127), *range(161, 173), *range(174, 256)]  # bytes that are their own characters
        byte = {chr(b): b for b in shown} | {chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in shown)}
        self.bytes = {i: bytes(byte[c] for c in text) for text, i in files["model"]["vocab"].items()}
        self.bytes |= {t["id"]: t["content"].encode() for t in files["added_tokens"]}
        self.special = {t["id"] for t in files["added_tokens"] if t["special"]}

    def raw(self, ids):
        return b"".join(self.bytes.get(i, b"") for i in ids)

    def text(self, ids):
        return self.raw(ids).decode("utf-8", "replace")


class Answer:
    """An answer that a client received, and its request."""

    def __init__(self, record):
        key = record["key"].removeprefix("mgrpo-").split(".")[0]
        ticket = json.loads(base64.urlsafe_b64decode(key + "=" * (-len(key) % 4)))
        self.request = record["request"]
        self.rollout, self.attempt = (ticket["phase"], ticket["query"], ticket["rollout"]), ticket["attempt"]
        self.agent, self.chat = self.request["model"], "messages" in self.request
        self.calls, self.log_probs, self.usage, self.finish, text = [], None, None, None, ""
        for part in record.get("events") or [record["reply"]]:
            self.id, self.usage = part["id"], part.get("usage") or self.usage
            for choice in part["choices"]:
                said = choice.get("message") or choice.get("delta") or choice
                text += said.get("content") or said.get("text") or ""
                self.calls += [call["function"] for call in said.get("tool_calls") or []]
                self.log_probs = (choice.get("logprobs") or {}).get("content") or self.log_probs
                self.finish = choice["finish_reason"] or self.finish
        self.text = text

    def fits(self, turn, tokenizer):
        """Reports whether this is the sampled turn."""
        ids = turn["ids"]
        if self.usage and (self.usage["prompt_tokens"], self.usage["completion_tokens"]) != (turn["from"], len(ids)):
            return False
        if self.log_probs and [(bytes(p["bytes"] or []), p["logprob"]) for p in self.log_probs] != \
                [(tokenizer.raw([i]), p) for i, p in zip(ids, turn["log_probs"])]:
            return False
        whole = tokenizer.text(ids)
        return same(self.text, self.shown(ids, tokenizer)) and all(
            call["arguments"] in whole or json.dumps(call["arguments"])[1:-1] in whole for call in self.calls)

    def shown(self, ids, tokenizer):
        """Returns the text of sampled tokens as clients receive it."""
        if not self.chat:
            return tokenizer.text([i for i in ids if i not in tokenizer.special])
        text = tokenizer.text(ids[:-1] if self.finish != "length" else ids)
        text = after_thinking(text)
        for mark in (["<tool_call>"] if self.calls else []) + list(self.request.get("stop") or []):
            text = text.partition(mark)[0]
        return text


def after_thinking(text):
    """Returns the text after the thinking of a Qwen3 model. A turn begins with the thinking; a tag in quotation marks does not count."""
    for tag in re.finditer("</think>", text):
        before, after = text[:tag.start()][-1:], text[tag.end():][:1]
        if not before or before != after or before not in "`'\"":
            return text[tag.end():]
    return "" if text.lstrip(" \t\r\n").startswith("<think>") else text


def same(a, b):
    """Reports whether texts are equal. Decoders may use different numbers of marks for bytes that are not UTF-8."""
    return re.sub("\ufffd+", "\ufffd", a) == re.sub("\ufffd+", "\ufffd", b)


def plain(message):
    """Returns a message without the fields that clients change when they repeat it."""
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "\n".join(part["text"] for part in content)
    calls = [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in message.get("tool_calls") or []]
    return [message["role"].replace("developer", "system"), content.strip(), calls]


def begun(answers, turns, tokenizer):
    """Returns the number of conversations: the requests that do not continue the messages of an earlier one."""
    openings, texts = [], []
    for a, turn in zip(answers, turns):
        if a.chat:
            asked = [plain(m) for m in a.request["messages"]]
            if not any(len(o) < len(asked) and o == asked[:len(o)] for o in openings):
                openings.append(asked)
        elif not any(a.request["prompt"] != t and a.request["prompt"].startswith(t) for t in texts):
            openings.append(None)
        if not a.chat:
            texts.append(a.request["prompt"] + tokenizer.text(turn["ids"]))
    return len(openings)


def stored(run):
    """Returns the sampled turns by rollout and agent, and the lines of trajectories."""
    turns, rows = collections.defaultdict(list), []
    for folder in glob.glob(os.path.join(run, "trajectories", "*-*")):
        for row in lines(os.path.join(folder, "*.jsonl")):
            rollout = (os.path.basename(folder), row["query"], row["rollout"])
            rows.append((rollout, row))
            assert row["finish"] != "program", f"a program failed: {row['program']}"
            assert len(row["tokens"]) == len(row["sampled"]) == len(row["log_probs"]), row["id"]
            for turn in row["turns"]:
                at = slice(turn["from"], turn["to"])
                assert row["sampled"][at] == [turn["sampled"]] * (turn["to"] - turn["from"]), row["id"]
                if turn["sampled"]:
                    turns[rollout, row["agent"]].append({"from": turn["from"], "ids": row["tokens"][at], "log_probs": row["log_probs"][at]})
    return turns, rows


def answered(log):
    """Returns the answers of the last attempts by rollout and agent. An answer that was received twice counts once."""
    latest, answers = {}, {}
    for a in map(Answer, lines(os.path.join(log, "*.jsonl"))):
        latest[a.rollout] = max(a.attempt, latest.get(a.rollout, 0))
        answers[a.rollout, a.attempt, a.id] = a
    out = collections.defaultdict(list)
    for (rollout, attempt, _), a in answers.items():
        if attempt == latest[rollout]:
            out[rollout, a.agent].append(a)
    return out, sum(attempt > 1 for attempt in latest.values())


def attribute(answers, turns, tokenizer):
    """Returns the sampled turn of each answer."""
    for a in answers:
        assert not a.rollout[0].startswith("step-") or a.request.get("temperature", 1) == 1, "sampled with a temperature that is not the run's"
    left, of = list(turns), {}
    for a in sorted(answers, key=lambda a: a.usage is None):  # if the number of tokens is known, only one turn matches
        turn = next((t for t in left if a.fits(t, tokenizer)), None)
        assert turn, f"{a.rollout} {a.agent}: no stored turn is what the client was answered: {a.text!r} {a.calls} {a.usage}"
        left.remove(turn)
        of[a.id] = turn
    assert not left, f"{answers[0].rollout} {answers[0].agent}: {len(left)} stored turns that no client was answered"
    return [of[a.id] for a in answers]


def main(run, log, tokenizer, rollouts):
    tokenizer = Tokenizer(tokenizer)
    turns, rows = stored(run)
    answers, again = answered(log)
    assert turns.keys() == answers.keys(), turns.keys() ^ answers.keys()
    trained = {rollout for rollout, _ in rows if rollout[0].startswith("step-")}
    assert len(trained) == int(rollouts), f"not {rollouts} rollouts: {sorted(trained)}"
    calls = {(rollout, agent): begun(said, attribute(said, turns[rollout, agent], tokenizer), tokenizer)
             for (rollout, agent), said in answers.items()}
    whole = [(rollout, row) for rollout, row in rows if not row.get("row_of")]
    ledger = {(f"step-{step['step']}", *r["id"].rsplit("/", 1), agent): r for agent in [MAIN, *SUBS]
              for step in lines(os.path.join(run, "ledger", agent + "*.jsonl")) for r in step["rollouts"]}
    for rollout, row in whole:
        if row["agent"] != MAIN:
            continue
        for agent in SUBS:
            d = row["calls"].get(agent, 0)
            invocations = sorted(r["invocation"] for at, r in whole if at == rollout and r["agent"] == agent)
            assert d == calls.get((rollout, agent), 0) and invocations == list(range(d)), (rollout, agent, d, calls, invocations)
            if rollout not in trained:
                continue  # of an evaluation
            entry = ledger[rollout[0], rollout[1], str(rollout[2]), agent]
            assert not entry.get("removed") and len(entry["trained"]) == d, entry
    for metrics in (m for m in lines(os.path.join(run, "metrics.jsonl")) if m["kind"] == "step"):
        of = [row for rollout, row in rows if rollout[0] == f"step-{metrics['step'] - 1}" and row["agent"] == metrics["agent"]]
        rewritten = sum("row_of" in row for row in of)
        assert metrics["values"]["trajectories"] == len(of) - rewritten and metrics["values"].get("rows_rewritten", 0) == rewritten, metrics
    print(f"{sum(map(len, answers.values()))} answers, {len(rows)} rows ({len(rows) - len(whole)} of rewritten histories), "
          f"{sum(len(a.calls) for said in answers.values() for a in said)} calls of functions, "
          f"d_k {sorted(n for (_, agent), n in calls.items() if agent != MAIN)}, {again} rollouts leased again")


main(*sys.argv[1:])
