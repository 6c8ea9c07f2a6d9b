"""An MCP server on stdio, of the standard library alone: a timetable with one tool.

mgrpo starts it once for each agent that has the tool, writes JSON-RPC requests to its standard input, a line each, and reads its
answers from standard output. If the server dies, mgrpo shows what it wrote on standard error. https://modelcontextprotocol.io
"""
import json
import sys

FIRST_FERRY = {"Lomm": "06:40", "Skarn": "07:05", "Vadsey": "05:50", "Port Ellery": "06:15", "Ane": "08:20", "Kelda": "07:45"}

TOOL = {
    "name": "timetable",
    "description": "Says when the first ferry of the day leaves a harbour.",
    "inputSchema": {
        "type": "object",
        "properties": {"harbour": {"type": "string", "description": "Name of the harbour."}},
        "required": ["harbour"],
    },
}


def call(params):
    """Answers a call. params["_meta"] says who asks: mgrpo/query, mgrpo/rollout, mgrpo/agent, mgrpo/invocation."""
    harbour = params["arguments"]["harbour"]
    if harbour in FIRST_FERRY:
        return {"content": [{"type": "text", "text": FIRST_FERRY[harbour]}]}
    known = ", ".join(FIRST_FERRY)
    return {"content": [{"type": "text", "text": f"no ferry leaves {harbour}; harbours: {known}"}], "isError": True}


def answer(method, params):
    if method == "initialize":
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {"name": "timetable", "version": "1"}}
    if method == "tools/list":
        return {"tools": [TOOL]}
    if method == "tools/call" and params["name"] == TOOL["name"]:
        return call(params)
    if method == "ping":
        return {}
    raise LookupError(f"{method}: not here")


for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue  # a notification, which nobody answers
    reply = {"jsonrpc": "2.0", "id": request["id"]}
    try:
        reply["result"] = answer(request["method"], request.get("params", {}))
    except (LookupError, TypeError) as error:
        reply["error"] = {"code": -32602, "message": str(error)}
    print(json.dumps(reply), flush=True)
