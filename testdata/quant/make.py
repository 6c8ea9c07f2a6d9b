"""Writes blocks.json: random blocks of each GGUF quantisation, and their values in the gguf package (0.19.0).

pip install gguf==0.19.0 && python testdata/quant/make.py
"""
import json, pathlib
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as Type
from gguf.quants import dequantize

# The places of binary16 scales in a block: their highest exponent bit is cleared, so that they are finite.
SCALES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}

rng = np.random.default_rng(12)
golden = {}
for name, scales in SCALES.items():
    length, size = GGML_QUANT_SIZES[Type[name]]
    blocks = rng.integers(0, 256, (max(2, 96 // length), size), dtype=np.uint8)
    for at in scales:
        blocks[:, at + 1] &= 0xBF
    values = dequantize(blocks, Type[name]).astype("<f4")
    golden[name] = {"blocks": blocks.tobytes().hex(), "float32": values.tobytes().hex()}
pathlib.Path(__file__).with_name("blocks.json").write_text(json.dumps(golden, indent=1) + "\n")
