"""Writes verl.parquet to its own folder, with the columns of verl's GSM8K: `pip install pyarrow && python write_verl.py`.

TestParquetOfVerl checks its rows.
"""
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq


def row(index, prompt, solution, truth):
    return {"data_source": "made/sums", "prompt": prompt, "ability": "math", "reward_model": {"style": "rule", "ground_truth": truth},
            "extra_info": {"split": "train", "index": index, "answer": solution, "question": prompt[-1]["content"]}}


table = pa.Table.from_pylist([
    row(0, [{"role": "system", "content": "Think step by step."}, {"role": "user", "content": "What is 2 + 2?"}], "2 + 2 = 4 #### 4", "4"),
    row(1, [{"role": "user", "content": "What is 3 + 4?"}], "3 + 4 = 7 #### 7", "7"),
])
pq.write_table(table, pathlib.Path(__file__).with_name("verl.parquet"))
