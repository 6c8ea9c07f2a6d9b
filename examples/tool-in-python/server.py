"""An MCP server on stdio with one tool, a timetable. It uses only the standard library.

mgrpo starts it once for each agent that has the tool, writes JSON-RPC requests to its standard input, one a line, and reads the
replies from its standard output. If the server dies, mgrpo shows its standard error. https://modelcontextprotocol.io
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
    """Answers a call. params["_meta"] identifies the caller: mgrpo/query, mgrpo/rollout, mgrpo/agent, mgrpo/invocation."""
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
        continue  # a notification, which has no reply
    reply = {"jsonrpc": "2.0", "id": request["id"]}
    try:
        reply["result"] = answer(request["method"], request.get("params", {}))
    except (LookupError, TypeError) as error:
        reply["error"] = {"code": -32602, "message": str(error)}
    print(json.dumps(reply), flush=True)
