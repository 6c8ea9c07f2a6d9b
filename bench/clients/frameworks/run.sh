#!/usr/bin/env bash
# run.sh: agent frameworks from the registry, with their defaults, talk to a model that `mgrpo serve` serves. Constrained decoding enforces
# the requested formats, so a small model is sufficient. Temperature 0 makes a run repeatable. If a call is required, parallel_tool_calls is
# false, because this model repeats a call without end. FRAMEWORKS="litellm_ crewai_" selects some of them. LIMIT is the number of seconds
# for each.
set -euo pipefail
cd "$(dirname "$0")/../../.."
here=bench/clients/frameworks out=build/frameworks-run limit=${LIMIT:-600}
$here/setup.sh
rm -rf $out
mkdir -p $out
# A waiting thread sleeps. OpenMP's threads spin by default. On a machine with other work, spinning
# threads take time from the thread that they wait for: a reply of 16 tokens took more than a minute.
export OMP_WAIT_POLICY=passive
bin/mgrpo serve --model models/SmolLM2-135M-Instruct.Q4_1.gguf --name smol --slots 4 --context 0 --listen 127.0.0.1:0 >$out/serve.log 2>&1 & server=$!
trap 'kill $server 2>/dev/null || true' EXIT
until url=$(grep -so 'http://127.0.0.1:[0-9]*/v1' $out/serve.log | head -1); [ -n "$url" ]; do
  kill -0 $server 2>/dev/null || { cat $out/serve.log >&2; exit 1; }
  sleep 0.1
done
export OPENAI_BASE_URL=$url OPENAI_API_BASE=$url OPENAI_API_KEY=any PYTHONDONTWRITEBYTECODE=1 HOME=$PWD/$out
export HF_HUB_OFFLINE=1 OTEL_SDK_DISABLED=true CREWAI_DISABLE_TELEMETRY=true CREWAI_TRACING_ENABLED=false LANGSMITH_TRACING=false LITELLM_LOCAL_MODEL_COST_MAP=True

# versions LIST PACKAGE...: prints the packages with their versions.
versions() {
  local list=$1 package
  shift
  for package; do grep "^$package==" $here/"$list".txt; done | sed 's/==/ /' | paste -sd, | sed 's/,/, /g'
}

# client NAME LIST PACKAGE...: runs one client. The client prints each step when it is finished.
client() {
  local name=$1 list=$2 site=build/$2 status=0
  shift 2
  [[ " ${FRAMEWORKS:-$name} " = *" $name "* ]] || return 0
  [ "$list" = crewai ] && site=build/frameworks-crewai
  printf '%s: ' "$(versions "$list" "$@")"
  SECONDS=0
  timeout --foreground --kill-after=10 "$limit" "$site/bin/python" $here/"$name".py 2>$out/"$name".log || status=$?
  echo " ($SECONDS s)"
  [ $status = 0 ] && return
  cat $out/"$name".log >&2
  case $status in
    124 | 137) echo "$name did not end within $limit s. LIMIT=SECONDS gives it more. The server's log is $out/serve.log." >&2 ;;
    *) echo "$name failed with status $status. Its log is $out/$name.log, the server's $out/serve.log." >&2 ;;
  esac
  exit 1
}

client openai_agents frameworks openai-agents openai
client pydantic_ai_ frameworks pydantic-ai-slim
client langchain_ frameworks langchain langchain-openai langgraph deepagents
client smolagents_ frameworks smolagents
client litellm_ frameworks litellm
client crewai_ crewai crewai
kill $server
wait $server
echo "every client got what it asked for"
