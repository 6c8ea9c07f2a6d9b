#!/usr/bin/env bash
# run.sh: agent frameworks as they come from the registry talk to a model that `mgrpo serve` serves. What they ask for is enforced, so that a
# small model can give it. FRAMEWORKS="litellm_ crewai_" for some of them.
set -euo pipefail
cd "$(dirname "$0")/../../.."
here=bench/clients/frameworks out=build/frameworks-run
$here/setup.sh
mkdir -p $out
bin/mgrpo serve --model models/SmolLM2-135M-Instruct.Q4_1.gguf --name smol --slots 4 --context 0 --listen 127.0.0.1:0 >$out/serve.log 2>&1 & server=$!
trap 'kill $server 2>/dev/null || true' EXIT
until url=$(grep -o 'http://127.0.0.1:[0-9]*/v1' $out/serve.log | head -1); [ -n "$url" ]; do
  kill -0 $server 2>/dev/null || { cat $out/serve.log >&2; exit 1; }
  sleep 0.1
done
export OPENAI_BASE_URL=$url OPENAI_API_BASE=$url OPENAI_API_KEY=any PYTHONDONTWRITEBYTECODE=1 HOME=$PWD/$out
export HF_HUB_OFFLINE=1 OTEL_SDK_DISABLED=true CREWAI_DISABLE_TELEMETRY=true CREWAI_TRACING_ENABLED=false LANGSMITH_TRACING=false LITELLM_LOCAL_MODEL_COST_MAP=True
for name in ${FRAMEWORKS:-openai_agents pydantic_ai_ langchain_ smolagents_ litellm_ crewai_}; do
  site=build/frameworks
  [ "$name" = crewai_ ] && site=build/frameworks-crewai
  printf '%s: ' "${name%_}"
  timeout 900 $site/bin/python $here/"$name".py 2>$out/"$name".log || { cat $out/"$name".log >&2; exit 1; }
done
