#!/usr/bin/env bash
# A program of curl and sed: the planner answers the question, the solver streams a reply, and the planner continues.
set -euo pipefail
text='"([^"\\]|\\.)*"' # a JSON text
question=$(sed -nE "s/.*\"question\": *($text).*/\1/p" <<<"$MGRPO_QUERY")

# ask BODY: posts a chat request and records the request and the answer in a line.
ask() {
  reply=$(curl -sS --fail-with-body --max-time 100 -H "Authorization: Bearer $OPENAI_API_KEY" -H 'Content-Type: application/json' \
    --data-binary "$1" "$OPENAI_BASE_URL/chat/completions")
  printf '{"key": "%s", "request": %s, "reply": %s}\n' "$OPENAI_API_KEY" "$1" "$reply" >>"$CLIENTS_LOG/$$.jsonl"
}

asked="{\"role\": \"user\", \"content\": $question}"
ask "{\"model\": \"planner\", \"max_tokens\": 24, \"messages\": [$asked]}"
said=$(sed -nE "s/.*\"content\": *($text|null).*/\1/p" <<<"$reply")

# The key may be part of the address.
body="{\"model\": \"solver\", \"stream\": true, \"max_tokens\": 8, \"messages\": [$asked]}"
streamed=$(curl -sS -N --fail-with-body --max-time 100 -H 'Content-Type: application/json' --data-binary "$body" \
  "${OPENAI_BASE_URL%/v1}/r/$OPENAI_API_KEY/v1/chat/completions")
[[ $streamed == *'data: [DONE]'* ]]
events=$(sed -n 's/^data: {/{/p' <<<"$streamed" | paste -sd,)
printf '{"key": "%s", "request": %s, "events": [%s]}\n' "$OPENAI_API_KEY" "$body" "$events" >>"$CLIENTS_LOG/$$.jsonl"

ask "{\"model\": \"planner\", \"max_tokens\": 8, \"messages\": [$asked, {\"role\": \"assistant\", \"content\": $said}, {\"role\": \"user\", \"content\": \"The number alone.\"}]}"

# Requests without a key and requests for unknown agents are refused.
status() { curl -sS -o /dev/null -w '%{http_code}' --max-time 100 -H "Authorization: Bearer $1" --data-binary "$2" "$OPENAI_BASE_URL/chat/completions"; }
[ "$(status sk-1234 "{\"model\": \"planner\", \"messages\": [$asked]}")" = 401 ]
[ "$(status "$OPENAI_API_KEY" "{\"model\": \"gpt-5\", \"messages\": [$asked]}")" = 404 ]
echo '{"answer": 7}'
