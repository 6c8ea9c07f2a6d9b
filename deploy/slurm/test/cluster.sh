#!/usr/bin/env bash
# cluster.sh FOLDER COMMAND...: starts a Slurm of three nodes on this machine with its files in FOLDER, runs COMMAND, and stops the Slurm.
# Needs slurmctld, slurmd and munged, root, and its own mount namespace, because node names must be in /etc/hosts.
set -euo pipefail
mkdir -p "$1/state" "$1/log"
folder=$(cd "$1" && pwd)
shift
export SLURM_CONF=$folder/slurm.conf

if [ -z "${CLUSTER_HOSTS-}" ]; then
  { cat /etc/hosts; printf '127.0.0.1%s\n' '1 n1' '2 n2' '3 n3'; } >"$folder/hosts"
  # shellcheck disable=SC2016 # the new shell expands this
  CLUSTER_HOSTS=1 exec unshare -m bash -c 'mount --bind "$0/hosts" /etc/hosts && exec "$@"' "$folder" "$0" "$folder" "$@"
fi

host=$(hostname -s)
(umask 077 && head -c 128 /dev/urandom >"$folder/munge.key")
# config_overrides: a node may have more CPUs than the machine. Gres: GPUs that Slurm grants and no job uses.
cat >"$SLURM_CONF" <<END
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=26817
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool-%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd-%n.pid
SlurmctldLogFile=$folder/log/slurmctld
SlurmdLogFile=$folder/log/slurmd-%n
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
KillWait=5
SlurmdParameters=config_overrides
GresTypes=gpu
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
$(for i in 1 2 3; do echo "NodeName=n$i NodeHostname=$host NodeAddr=127.0.0.1$i Port=$((26817 + i)) CPUs=8 RealMemory=8000 Gres=gpu:1 State=UNKNOWN"; done)
END
echo 'NodeName=n[1-3] Name=gpu File=/dev/null' >"$folder/gres.conf"

pids=()
stop() {
  scancel --partition=main 2>/dev/null || true
  for ((i = 0; i < 100; i++)); do # processes of a job end before its node
    if [ -z "$(squeue -h -t running,completing 2>/dev/null)" ]; then break; fi
    sleep 0.2
  done
  kill "${pids[@]}" 2>/dev/null || true
  wait "${pids[@]}" 2>/dev/null || true
  if [ -e "$folder/munged.pid" ]; then kill "$(cat "$folder/munged.pid")" 2>/dev/null || true; fi
}
trap stop EXIT
munged --key-file="$folder/munge.key" --socket="$folder/munge.socket" --pid-file="$folder/munged.pid" --log-file="$folder/log/munged" --seed-file="$folder/munge.seed"
slurmctld -D >"$folder/log/slurmctld.out" 2>&1 & pids+=($!)
for node in n1 n2 n3; do slurmd -D -N $node >"$folder/log/$node.out" 2>&1 & pids+=($!); done
until [ "$(sinfo -h -t idle -o %D 2>/dev/null)" = 3 ]; do
  for pid in "${pids[@]}"; do
    kill -0 "$pid" 2>/dev/null || { tail -n 20 "$folder"/log/*.out >&2; exit 1; }
  done
  sleep 0.2
done
"$@"
