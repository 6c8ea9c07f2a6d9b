"""Plays rollouts of a run of mgrpo: leases one, asks both agents, and returns their common reward."""
import json
import time
import urllib.error
import urllib.request

import task


def send(method, url, key, body):
    """Returns the JSON of the reply, or None if it is empty."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers, method=method), timeout=120) as reply:
        text = reply.read()
    return json.loads(text) if text else None


def play(url, token, training):
    """Plays rollouts until the process training has ended."""
    while training.poll() is None:
        try:
            lease = send("POST", f"{url}/rollouts/lease", token, {})
            if lease is not None:
                send("PUT", f"{url}/rollouts/{lease['id']}/result", lease["key"], result(lease))
        except urllib.error.HTTPError:
            raise
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)  # the run has not begun, or has ended


def result(lease):
    question, answers = lease["query"]["question"], {}
    for agent in task.AGENTS:
        body = {"model": agent, "messages": [{"role": "user", "content": question}]}
        reply = send("POST", f"{lease['base_url']}/chat/completions", lease["key"], body)
        answers[agent] = reply["choices"][0]["message"]["content"] or ""
    reward = task.reward(question, answers)
    return {"answer": "", "correct": reward, "format": True, "experts": {"smallest": [reward]}}
