#!/usr/bin/env bash
# sentinel.sh: runs the pods of components/sentinel as processes, each with its own addresses and files, and a team that trains while the
# master is killed. run.sh starts it after it has applied the component to the API server of KUBECONFIG, which provides files and passwords.
# It runs as root.
# shellcheck disable=SC2016 # the inner shells expand these
set -euo pipefail
cd "$(dirname "$0")/../../.."
folder=$PWD/build/kubernetes/run/sentinel
mkdir -p "$folder"
command -v redis-server >/dev/null || { echo 'test-kubernetes: redis-server is missing' >&2; exit 1; }
hosts=$folder/hosts
cp /etc/hosts "$hosts"
for i in 0 1 2; do echo "127.0.0.3$i mgrpo-redis-$i.mgrpo-redis" >>"$hosts"; done
value() { kubectl get "$1" "$2" -o "jsonpath={.data.$3}"; } # KIND NAME KEY, with dots escaped
secret() { value secret "$1" "$2" | base64 -d; }
start=$(kubectl get configmap -o name | grep mgrpo-redis-start)
start=${start#*/}

# pod I CONTAINER: runs the container's command in a root folder with the machine's programs and the pod's own /data and /etc.
pod() {
  local root=$folder/root-$1
  mkdir -p "$root"/{usr,proc,dev,tmp,data,etc/redis/{conf,acl,start}}
  ln -sfn usr/bin "$root/bin"
  ln -sfn usr/lib "$root/lib"
  ln -sfn usr/lib64 "$root/lib64"
  cp "$hosts" "$root/etc/hosts"
  value configmap mgrpo-redis 'redis\.conf' >"$root/etc/redis/conf/redis.conf"
  value configmap "$start" "$2\\.sh" >"$root/etc/redis/start/$2.sh"
  secret mgrpo-redis-acl 'users\.acl' >"$root/etc/redis/acl/users.acl"
  POD_NAME=mgrpo-redis-$1 POD_IP=127.0.0.3$1 REPLICA_PASSWORD=$(secret mgrpo-redis-servers replica) SENTINEL_PASSWORD=$(secret mgrpo-redis-servers sentinel) \
    exec unshare -m bash -c 'mount --bind /usr "$0/usr" && mount --bind /proc "$0/proc" && mount --bind /dev "$0/dev" && exec chroot "$0" sh "/etc/redis/start/$1.sh"' \
    "$root" "$2" >>"$folder/$2-$1.log" 2>&1
}
declare -A server
trap 'kill -9 "${server[@]}" "${workers[@]}" 2>/dev/null || true; wait 2>/dev/null' EXIT
workers=()
for i in 0 1 2; do
  for container in redis sentinel; do
    pod $i $container & server[$container-$i]=$!
  done
done
ask() { unshare -m bash -c 'mount --bind "$0" /etc/hosts && exec redis-cli -h mgrpo-redis-$1.mgrpo-redis -p 26379 "${@:2}"' "$hosts" "$@"; }
master() { ask "$1" sentinel get-master-addr-by-name team | head -n 1; }
# wait_for DESCRIPTION COMMAND: repeats the command until it succeeds, for two minutes at most.
wait_for() {
  for _ in $(seq 400); do
    if "${@:2}" >/dev/null 2>&1; then return; fi
    sleep 0.3
  done
  echo "test-kubernetes: waited for $1" >&2
  tail -n 5 "$folder"/*.log >&2
  exit 1
}
knows_all() { [ "$(ask "$1" sentinel replicas team | grep -c '^slave-priority$')" = 2 ] && [ "$(ask "$1" sentinel sentinels team | grep -c '^runid$')" = 2 ]; }
for i in 0 1 2; do wait_for "Sentinel $i to know all servers" knows_all $i; done

echo '-- a team trains, and its master is killed'
kubectl get configmap mgrpo-team -o 'jsonpath={.data.team\.yaml}' >"$folder/team.yaml"
url=$(kubectl get job mgrpo-planner -o 'jsonpath={.spec.template.spec.containers[0].args}' | grep -o 'store\.url=[^"]*' | sed 's/\\u0026/\&/g')
MGRPO_HEALTH_TOKEN=$(secret mgrpo-health token)
export MGRPO_HEALTH_TOKEN
mapfile -t small < <(tr ' ' '\n' <.ci/quickstart-small)
for agent in planner researcher; do
  MGRPO_STORE_PASSWORD=$(secret mgrpo-store-$agent password) unshare -m bash -c 'mount --bind "$0" /etc/hosts && exec bin/mgrpo "$@"' "$hosts" \
    worker "$folder/team.yaml" --agent=$agent --resume --set="store.username=research-team-$agent" --set="$url" "${small[@]}" \
    --set="run.dir=$folder/$agent" --set=run.steps=40 --set=run.checkpoint_every=10 --set=agents.planner.device=cpu --set=agents.researcher.device=cpu \
    --set=health.address=127.0.0.1:0 >"$folder/$agent.log" 2>&1 & workers+=($!)
done
wait_for 'step 5' grep '^step 5/' "$folder/planner.log"
first=$(master 0)
i=${first#mgrpo-redis-} i=${i%%.*}
kill -9 "${server[redis-$i]}"
other=$(( (i + 1) % 3 ))
failed_over() { [ "$(master $other)" != "$first" ]; }
wait_for 'another master' failed_over
for worker in "${workers[@]}"; do
  wait "$worker" || { echo "test-kubernetes: a worker ended with status $?" >&2; tail -n 20 "$folder"/{planner,researcher}.log >&2; exit 1; }
done
grep '^40 steps' "$folder/planner.log"

echo '-- the server that was killed comes back as a replica'
rm "$folder/root-$i/data/redis.conf"
pod "$i" redis & server[redis-$i]=$!
copies() { grep "^replicaof $(master $other) " "$folder/root-$i/data/redis.conf" && ! ask $other sentinel replicas team | grep -E 's_down|disconnected'; }
wait_for 'the server' copies
