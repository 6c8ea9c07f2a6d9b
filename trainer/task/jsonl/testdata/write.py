"""Writes pyarrow.parquet to its own folder, in the form of published data sets: `pip install pyarrow && python write.py`.

TestParquetOfPyarrow checks its rows.
"""
import decimal
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq

nan = float("nan")
table = pa.table({
    "id": pa.array(["sum-1", "capital-1", "sum-2"]),
    "question": pa.array(["2 + 2?", "Côte d'Ivoire <capital>?", "3 + 4?"], pa.large_string()),
    "answer": pa.array([["4", "four"], ["Yamoussoukro"], ["7"]], pa.list_(pa.string())),
    "choices": pa.array([["3", "4"], None, []], pa.list_(pa.string())),
    "subject": pa.array(["sums", "places", "sums"]).dictionary_encode(),
    "level": pa.array([1, None, 3], pa.int32()),
    "weight": pa.array([0.5, None, nan], pa.float64()),
    "checked": pa.array([True, False, None]),
    "price": pa.array([decimal.Decimal("12.50"), None, decimal.Decimal("-0.25")], pa.decimal128(10, 2)),
    "parts": pa.array([[{"question": "What is 2?", "answer": ["2", "two"]}, {"question": "What is another 2?", "answer": ["2"]}], None, []],
                      pa.list_(pa.struct([("question", pa.string()), ("answer", pa.list_(pa.string()))]))),
    "meta": pa.array([{"source": "book", "tags": ["a", "b"]}, None, {"source": None, "tags": []}]),
})
pq.write_table(table, pathlib.Path(__file__).with_name("pyarrow.parquet"), row_group_size=2, compression="zstd", data_page_version="2.0")
