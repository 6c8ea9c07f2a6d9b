#!/usr/bin/env bash
# run.sh: real clients talk to teams in training, and the files of the runs are compared with the answers that the clients received. Then a
# program repeats the conversations that mgrpo holds itself, and both runs must end with the same bits. LIMIT is the number of seconds for
# each run.
set -euo pipefail
cd "$(dirname "$0")/../.."
bench/clients/setup.sh
here=$PWD/bench/clients out=$PWD/build/clients-run tokenizer=$PWD/build/qwen3-tokenizer limit=${LIMIT:-900}
export PYTHONPATH=$PWD/build/clients PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1 LANGSMITH_TRACING=false
rm -rf "$out"
mkdir -p "$out"
make --silent qwen3-tokenizer
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT

# train NAME CONFIG FLAG...: trains in $out/NAME. The run's clients write to $out/NAME-said.
train() {
  local name=$1 config=$2 status=0
  shift 2
  mkdir -p "$out/$name-said"
  CLIENTS_LOG=$out/$name-said timeout --foreground --kill-after=10 "$limit" bin/mgrpo train "$config" --set run.dir="$out/$name" "$@" >"$out/$name.log" 2>&1 || status=$?
  [ $status = 0 ] && return
  tail -n 1 "$out/$name.log" | grep -q '^mgrpo: nothing was trained' && return # equal rewards: all files are complete and can be compared
  cat "$out/$name.log" >&2
  case $status in 124 | 137) echo "$name did not end within $limit s; LIMIT=SECONDS gives it more" >&2 ;; esac
  return 1
}

# client NAME COMMAND: a client plays the rollouts of team.yaml. Prints the seconds that they took.
client() {
  printf '%s: ' "$(cat bench/clients/requirements.txt examples/langgraph/requirements.txt | grep "^$1==" || echo "$1")"
  SECONDS=0
  train "$1" "${config:-$here/team.yaml}" --set run.steps=1 --set task.queries_per_step=2 --set grpo.rollouts=2 \
    --set "task.program={command: [$2], parallel: 4, timeout: 5m}"
  printf '%s s, ' $SECONDS
  python3 "$here/check.py" "$out/$1" "$out/$1-said" "$tokenizer/tokenizer.json" 4
}

client openai "python3, $here/recorded.py, $here/openai_agent.py"
client smolagents "python3, $here/recorded.py, $here/smolagents_agent.py"
client curl "$here/curl.sh"
config=examples/langgraph/team.yaml client langgraph "python3, $here/recorded.py, agent.py"

python3 "$here/questions.py" testdata/gsm8k/train.jsonl build/clients-gsm8k
loop="python3 $here/recorded.py $here/loop.py"
printf 'eight programs: '
train own "$here/gsm8k.yaml"
train program "$here/gsm8k.yaml" --set "task.program={command: [${loop// /, }], parallel: 8}"
python3 "$here/compare.py" "$out/own" "$out/program"

# A machine dies while its program plays a rollout. The rollout is leased again, to another machine.
printf 'elsewhere, one machine killed: '
export MGRPO_PROGRAMS=a-token-for-machines
train elsewhere "$here/gsm8k.yaml" --set "task.program={elsewhere: true, lease: 3s}" \
  --set gateway.listen=127.0.0.1:0 --set gateway.token_env=MGRPO_PROGRAMS & training=$!
until url=$(grep -o 'http://127.0.0.1:[0-9]*' "$out/elsewhere.log" 2>/dev/null | head -1); [ -n "$url" ]; do kill -0 $training && sleep 0.1; done
rollouts() { CLIENTS_LOG=$out/elsewhere-said exec bin/mgrpo rollout --url "$url" --token-env MGRPO_PROGRAMS --exec "$loop" --parallel "$1" >>"$out/rollout.log" 2>&1; }
STALL=$out/stalled rollouts 1 & doomed=$!
until [ -e "$out/stalled" ]; do kill -0 $training && sleep 0.1; done
kill -9 $doomed "$(cat "$out/stalled")"
rollouts 8 & living=$!
wait $training
kill $living
wait $living
python3 "$here/compare.py" "$out/own" "$out/elsewhere"
smollm2=testdata/tokenizer/smollm2/tokenizer.json
python3 "$here/check.py" "$out/program" "$out/program-said" $smollm2 24
python3 "$here/check.py" "$out/elsewhere" "$out/elsewhere-said" $smollm2 24 | tee "$out/elsewhere.said"
grep -Eq ', [1-9][0-9]* rollouts leased again' "$out/elsewhere.said"
