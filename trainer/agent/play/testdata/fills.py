"""Writes fills.parquet to its own folder: `pip install pyarrow && python fills.py`.

Two chats with calls of different functions. Arrow gives the structs of both the same fields. TestParquetFillsAreNotLearned reads them.
"""
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq


def function(name, required, **properties):
    parameters = {"type": "object", "properties": properties, "required": [required]}
    return {"type": "function", "function": {"name": name, "description": name[0], "parameters": parameters}}


def chat(question, tool, arguments):
    call = {"id": "c1", "type": "function", "function": {"name": tool["function"]["name"], "arguments": arguments}}
    return {"tools": [tool], "messages": [
        {"role": "user", "content": question}, {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "r"}, {"role": "assistant", "content": "a"}]}


maybe = {"anyOf": [{"type": "string"}, {"type": "null"}]}
rows = [
    chat("w?", function("weather", "city", city={"type": "string"}, unit=maybe), {"city": "Oslo", "unit": None}),
    chat("2+2?", function("calc", "expression", expression={"type": "string"}), {"expression": "2+2"}),
]
pq.write_table(pa.Table.from_pylist(rows), pathlib.Path(__file__).with_name("fills.parquet"))
