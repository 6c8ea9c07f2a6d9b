#!/usr/bin/env bash
# run.sh [--dry-run] CONFIG [OPTION...]: a Redis and a worker for each agent of CONFIG, on this machine. The options
# are those of mgrpo worker.
#
# A worker that a signal kills is started again, and so is the Redis: the run goes on. Ctrl-C, or SIGTERM, lets the
# workers finish the step in flight and write a checkpoint; a second one stops them at once. The same command goes on
# from there. The status is 0 when the run is complete, 75 when it was stopped, else that of the worker that failed.
# Each line that a worker prints begins with its agent. DIR/status.sh shows the team's status.
#
# Environment: DIR, where the Redis keeps its data and its users' passwords; PORT, its port; HEALTH_PORT, that of the
# first worker's /healthz, /readyz and /metrics, the next worker's being one higher; RESTARTS, how often one process
# is started again; MGRPO, the program.
set -euo pipefail
set -m # every process is a group of its own: Ctrl-C at the terminal is for this script alone

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

(umask 077 && mkdir -p "$dir") # what agents say is kept there
dir=$(cd "$dir" && pwd)
answers() { (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; }
if [ ! "$dry" ]; then # nothing is written where another run is going on
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
mapfile -t users < <("$here/../acl.sh" "$dir" -c "$config" "$@" --set "store.url=$url")
if [ ${#users[@]} -lt 3 ]; then exit 1; fi # acl.sh has said why
run=${users[0]} onlooker=${users[-1]} workers=("${users[@]:1:${#users[@]}-2}")
cores=$("$MGRPO" version | awk '$1 == "CPU" { print $2 }') # those that affinity and a container's quota leave
threads=$((cores / ${#workers[@]}))

declare -A commands # by the name of a process: its command line, quoted
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
  process "$agent" "$MGRPO" worker -c "$config" --agent "$agent" --resume \
    --set "run.threads=$((threads > 0 ? threads : 1))" --set "health.address=127.0.0.1:$health" "$@" \
    --set "store.url=$url" --set "store.username=$user" --set "store.password_file=$dir/$user.password"
  health=$((health + 1))
done
{
  printf '#!/usr/bin/env bash\n# The status of the team that deploy/local/run.sh trains. Options are those of mgrpo status.\n'
  printf 'cd %q\nexec ' "$PWD"
  printf '%q ' "$MGRPO" status -c "$config" "$@" --set "store.url=$url" \
    --set "store.username=$onlooker" --set "store.password_file=$dir/$onlooker.password"
  echo '"$@"'
} >"$dir/status.sh"
chmod +x "$dir/status.sh"
printf 'to look at it: %q\n' "$dir/status.sh"
if [ "$dry" ]; then
  for name in "${order[@]}"; do printf '%s: %s\n' "$name" "${commands[$name]}"; done
  exit
fi

# What a process prints goes to the terminal through a filter that puts its name before each line. A filter outlives
# the processes of its name and ignores Ctrl-C: it ends when nobody can write to it any more.
declare -A outputs filters # by name
for name in "${order[@]}"; do
  exec {output}> >(trap '' INT TERM && exec sed -u "s/^/$(printf '%-10s' "$name") | /" 9>&-)
  outputs[$name]=$output filters[$name]=$!
done

declare -A pids started # by name
start() {
  eval "${commands[$1]} >&${outputs[$1]} 2>&1 &"
  pids[$1]=$!
  started[$1]=$((${started[$1]-0} + 1))
  if [ "$stopping" ] && [ "$1" != redis ]; then kill -TERM "${pids[$1]}" 2>/dev/null || true; fi # the signal came meanwhile
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
# Whatever happens, the Redis goes last: a worker needs it to stop.
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
  for output in "${outputs[@]}"; do exec {output}>&-; done # all of them first: a filter holds those before it open
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
  if [ "$stopping" ] && [ "$2" = 143 ]; then set -- "$1" 75; fi # it was stopped before it could take the signal
  unset "pids[$1]"
  if [ -z "$stopping" ] && { [ "$1" = redis ] || { [ "$2" -gt 128 ] && [ "$2" != 130 ]; }; } && [ "${started[$1]}" -le "$restarts" ]; then
    say "$1 ended with status $2; starting it again"
    sleep 1
    start "$1"
    return
  fi
  if [ "$1" != redis ]; then say "$1 ended with status $2"; fi
  if [ "$2" != 0 ] && { [ "$result" = 0 ] || [ "$result" = 75 ]; }; then result=$2; fi
  if [ "$1" != redis ] && [ "$2" != 0 ] && [ "$2" != 75 ]; then # without it the others cannot finish their step either
    if [ -z "$stopping" ]; then
      stop
      sleep 1
    fi
    stop
  fi
}
# Asked one by one: of several that end at once, bash's wait -n may miss all but the first.
while [ ${#pids[@]} -gt 1 ] || { [ ${#pids[@]} = 1 ] && [ -z "${pids[redis]-}" ]; }; do
  for name in "${!pids[@]}"; do
    if kill -0 "${pids[$name]}" 2>/dev/null; then continue; fi
    status=0
    wait "${pids[$name]}" 2>/dev/null || status=$? # bash would print the whole command line of what a signal killed
    ended "$name" "$status"
  done
  sleep 0.2 &
  wait $! || true # a signal to this script ends it early
done
exit "$result"
