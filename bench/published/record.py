"""Records which published tokenizers, and which published weights, gave the numbers of the libraries. usage: record.py LOG"""
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from checked import record

names = re.findall(r"^golden: tokenizer/(\w+)/cases: \d+ cases$", Path(sys.argv[1]).read_text(), re.M)
if not names:
    sys.exit("record: the log has no tokenizers")
record("tokenizers", "tokenizers", names)
record("llama.cpp", "xllamacpp", ["gemma3_text"])
