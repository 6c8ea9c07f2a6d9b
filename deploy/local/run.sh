#!/usr/bin/env bash
# run.sh [--dry-run] CONFIG [OPTION...]: runs a Redis and a worker for each agent of CONFIG on this machine. It takes the options of mgrpo
# worker.
#
# A worker or a Redis that a signal kills is started again, and the run continues. After Ctrl-C or SIGTERM the workers finish the step in
# flight and write a checkpoint; a second signal stops them at once. The same command continues the run. The status is 0 when the run is
# complete, 75 when it was stopped, else the status of the worker that failed. Each line of a worker's output begins with its agent.
# DIR/status.sh shows the team's status.
#
# Environment:
#   DIR          folder of the Redis's data and of its users' passwords
#   PORT         port of the Redis
#   HEALTH_PORT  port of the first worker's /healthz, /readyz and /metrics; each next worker's port is one higher
#   RESTARTS     how often one process is started again
#   MGRPO        the program
set -euo pipefail
set -m # every process is its own group, so Ctrl-C at the terminal reaches only this script

here=$(cd "$(dirname "$0")" && pwd)
export MGRPO=${MGRPO:-$here/../../bin/mgrpo}
dir=${DIR:-runs/redis} port=${PORT:-6399} health=${HEALTH_PORT:-9464} restarts=${RESTARTS:-10}

dry=
if [ "${1-}" = --dry-run ]; then
  dry=1
  shift
fi
if [ $# = 0 ]; then
  echo 'usage: deploy/local/run.sh [--dry-run] CONFIG [OPTION...]' >&2
  exit 2
fi
config=$1
shift

say() { printf 'run.sh: %s\n' "$1" >&2; }

(umask 077 && mkdir -p "$dir") # the Redis stores the agents' texts there
dir=$(cd "$dir" && pwd)
answers() { (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; }
if [ ! "$dry" ]; then # another run may use the folder, so nothing is written there before this check
  if ! command -v redis-server >/dev/null; then
    say 'no redis-server on the PATH: apt-get install redis-server'
    exit 1
  fi
  exec 9>"$dir/lock"
  if ! flock -n 9; then
    say "another run.sh uses $dir, or a process that it left behind does: end it, or set DIR and PORT to others"
    exit 1
  fi
  if answers; then
    say "something listens on port $port already: set PORT to another one, or end it"
    exit 1
  fi
fi
url=redis://127.0.0.1:$port/0
mapfile -t users < <("$here/../acl.sh" "$dir" "$config" "$@" --set "store.url=$url")
if [ ${#users[@]} -lt 3 ]; then exit 1; fi # acl.sh has printed the reason
run=${users[0]} onlooker=${users[-1]} workers=("${users[@]:1:${#users[@]}-2}")
cores=$("$MGRPO" version | awk '$1 == "CPU" { print $2 }') # the cores that affinity and a container's quota allow
threads=$((cores / ${#workers[@]}))

declare -A commands # command lines by the name of the process, quoted
process() { # NAME COMMAND...
  local name=$1
  shift
  printf -v "commands[$name]" '%q ' "$@"
  order+=("$name")
}
order=()
process redis redis-server --port "$port" --bind 127.0.0.1 --dir "$dir" --aclfile "$dir/users.acl" \
  --appendonly yes --appendfsync always --maxmemory-policy noeviction --save '' --logfile "$dir/log"
for user in "${workers[@]}"; do
  agent=${user#"$run-"}
  process "$agent" "$MGRPO" worker "$config" --agent "$agent" --resume \
    --set "run.threads=$((threads > 0 ? threads : 1))" --set "health.address=127.0.0.1:$health" "$@" \
    --set "store.url=$url" --set "store.username=$user" --set "store.password_file=$dir/$user.password"
  health=$((health + 1))
done
{
  printf '#!/usr/bin/env bash\n# The status of the team that deploy/local/run.sh trains. Options are those of mgrpo status.\n'
  printf 'cd %q\nexec ' "$PWD"
  printf '%q ' "$MGRPO" status "$config" "$@" --set "store.url=$url" \
    --set "store.username=$onlooker" --set "store.password_file=$dir/$onlooker.password"
  echo '"$@"'
} >"$dir/status.sh"
chmod +x "$dir/status.sh"
printf 'to look at it: %q\n' "$dir/status.sh"
if [ "$dry" ]; then
  for name in "${order[@]}"; do printf '%s: %s\n' "$name" "${commands[$name]}"; done
  exit
fi

# A process's output goes to the terminal through a filter that puts the process's name before each line. A filter outlives the processes of
# its name and ignores Ctrl-C: it ends when its input is closed.
declare -A outputs filters # by name
for name in "${order[@]}"; do
  exec {output}> >(trap '' INT TERM && exec sed -u "s/^/$(printf '%-10s' "$name") | /" 9>&-)
  outputs[$name]=$output filters[$name]=$!
done

declare -A pids started # by the name of the process
start() {
  eval "${commands[$1]} >&${outputs[$1]} 2>&1 &"
  pids[$1]=$!
  started[$1]=$((${started[$1]-0} + 1))
  if [ "$stopping" ] && [ "$1" != redis ]; then kill -TERM "${pids[$1]}" 2>/dev/null || true; fi # the signal came in the meantime
}

stopping=
stop() {
  stopping=1
  local name
  for name in "${!pids[@]}"; do
    if [ "$name" != redis ]; then kill -TERM "${pids[$name]}" 2>/dev/null || true; fi
  done
}
trap stop INT TERM
# The Redis always ends last, because a worker needs it to stop.
# shellcheck disable=SC2317 # the trap calls it
finish() {
  local redis=${pids[redis]-}
  unset 'pids[redis]'
  stop
  for name in "${!pids[@]}"; do wait "${pids[$name]}" || true; done
  if [ "$redis" ]; then
    kill -TERM "$redis" 2>/dev/null || true
    wait "$redis" || true
  fi
  local output
  for output in "${outputs[@]}"; do exec {output}>&-; done # close all outputs first, because each filter keeps the earlier ones open
  for name in "${!filters[@]}"; do wait "${filters[$name]}" || true; done
}
trap finish EXIT

start redis
for ((i = 0; i < 300; i++)); do
  if ! kill -0 "${pids[redis]}" 2>/dev/null; then
    say "the Redis did not start: see $dir/log"
    exit 1
  fi
  if answers || [ "$stopping" ]; then break; fi
  sleep 0.1
done
result=0
for name in "${order[@]:1}"; do
  if [ "$stopping" ]; then result=75; else start "$name"; fi
done

ended() { # NAME STATUS
  if [ "$stopping" ] && [ "$2" = 143 ]; then set -- "$1" 75; fi # it was stopped before it could handle the signal
  unset "pids[$1]"
  if [ -z "$stopping" ] && { [ "$1" = redis ] || { [ "$2" -gt 128 ] && [ "$2" != 130 ]; }; } && [ "${started[$1]}" -le "$restarts" ]; then
    say "$1 ended with status $2; starting it again"
    sleep 1
    start "$1"
    return
  fi
  if [ "$1" != redis ]; then say "$1 ended with status $2"; fi
  if [ "$2" != 0 ] && { [ "$result" = 0 ] || [ "$result" = 75 ]; }; then result=$2; fi
  if [ "$1" != redis ] && [ "$2" != 0 ] && [ "$2" != 75 ]; then # without this agent the others cannot finish their step
    if [ -z "$stopping" ]; then
      stop
      sleep 1
    fi
    stop
  fi
}
# Processes are checked one by one: if several end at once, bash's wait -n may report only the first.
while [ ${#pids[@]} -gt 1 ] || { [ ${#pids[@]} = 1 ] && [ -z "${pids[redis]-}" ]; }; do
  for name in "${!pids[@]}"; do
    if kill -0 "${pids[$name]}" 2>/dev/null; then continue; fi
    status=0
    wait "${pids[$name]}" 2>/dev/null || status=$? # otherwise bash would print the whole command line of a killed process
    ended "$name" "$status"
  done
  sleep 0.2 &
  wait $! || true # a signal to this script ends it early
done
exit "$result"
