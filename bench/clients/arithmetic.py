"""A calculator: a function for loop.py, and an MCP server on stdio for the team's own conversations."""
import ast
import json
import operator
import sys
from fractions import Fraction

DESCRIPTION = "Evaluates an arithmetic expression exactly."
SCHEMA = {  # the keys are in the order in which a Go program writes them, so that both conversations show the model the same text
    "properties": {"expression": {"description": "Numbers with + - * / and parentheses.", "type": "string"}},
    "required": ["expression"],
    "type": "object",
}
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def value(node):
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return Fraction(str(node.value))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](value(node.left), value(node.right))
    raise ValueError("not arithmetic")


def calculate(expression):
    """Returns the value as text. The message of a ValueError is a constant."""
    try:
        return str(value(ast.parse(expression[:200].strip(), mode="eval").body))
    except ZeroDivisionError:
        raise ValueError("a division by zero") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError("this is not arithmetic") from None


def answer(method, params):
    if method == "initialize":
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {"name": "arithmetic", "version": "1"}}
    if method == "tools/list":
        return {"tools": [{"name": "calculator", "description": DESCRIPTION, "inputSchema": SCHEMA}]}
    if method != "tools/call":
        return {}
    try:
        return {"content": [{"type": "text", "text": calculate(params["arguments"]["expression"])}]}
    except ValueError as problem:
        return {"content": [{"type": "text", "text": str(problem)}], "isError": True}


if __name__ == "__main__":
    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request:
            print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": answer(request["method"], request.get("params", {}))}), flush=True)
