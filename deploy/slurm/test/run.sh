#!/usr/bin/env bash
# run.sh: team.sbatch on a real Slurm of three nodes on this machine (make test-slurm). It tries a run,
# a time limit with its requeue and resume, a worker that is killed, and an agent on two machines.
set -euo pipefail
cd "$(dirname "$0")/../../.."
folder=$PWD/build/slurm

if [ "${1-}" != inside ]; then
  missing=()
  for program in slurmctld:slurm-wlm slurmd:slurm-wlm munged:munge; do
    PATH=$PATH:/usr/sbin command -v "${program%:*}" >/dev/null || missing+=("${program#*:}")
  done
  if [ ${#missing[@]} -gt 0 ]; then
    install="apt-get install -y --no-install-recommends slurm-wlm munge"
    [ "$(id -u)" = 0 ] || { echo "test-slurm: this needs root and: $install" >&2; exit 1; }
    echo "test-slurm: installing slurm-wlm and munge"
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive $install -qq >/dev/null
  fi
  rm -rf "$folder"
  PATH=$PATH:/usr/sbin exec deploy/slurm/test/cluster.sh "$folder" "$PWD/deploy/slurm/test/run.sh" inside
fi

mapfile -t small < <(tr ' ' '\n' <.ci/quickstart-small)
# submit NAME OPTION... -- SETTING...: submits a job whose run and log have this name, and prints its number.
submit() {
  local name=$1 options=()
  shift
  while [ "$1" != -- ]; do options+=("$1"); shift; done
  shift
  DIR=$folder/$name-redis sbatch --parsable --output="$folder/$name.log" "${options[@]}" deploy/slurm/team.sbatch \
    examples/quickstart/team.yaml --set "run.dir=$folder/$name" "${small[@]}" "$@"
}
field() { scontrol show job -o "$1" | tr ' ' '\n' | sed -n "s/^$2=//p"; }
fail() {
  echo "test-slurm: $1" >&2
  tail -n 40 "$folder/$2.log" >&2
  exit 1
}
# until_says NAME TEXT JOB: waits until the job's log has the text. It fails if the job ends before that.
until_says() {
  until grep -qs -- "$2" "$folder/$1.log"; do
    case $(field "$3" JobState) in FAILED | CANCELLED | TIMEOUT | NODE_FAIL | COMPLETED) fail "$1 ended without '$2'" "$1" ;; esac
    sleep 0.3
  done
}
# done_well NAME JOB: waits until the job has completed. A job that Slurm would requeue in two minutes starts at once.
done_well() {
  while :; do
    case $(field "$2" JobState) in
      COMPLETED) return ;;
      FAILED | CANCELLED | TIMEOUT | NODE_FAIL) fail "$1: $(field "$2" JobState)" "$1" ;;
      PENDING) if [ "$(field "$2" Reason)" = BeginTime ]; then scontrol update "JobId=$2" StartTime=now; fi ;;
    esac
    sleep 0.3
  done
}

echo '-- a run on two nodes'
job=$(submit run --nodes=2 --time=30 --)
done_well run "$job"
test -d "$folder/run/checkpoints/step-000002" || fail 'no checkpoint of the last step' run

echo '-- a time limit: stopped, queued again, resumed'
# Slurm may send the signal up to a minute early, so after at least half a minute.
job=$(submit limit --nodes=2 --time=2 --signal=B:TERM@30 -- --set run.steps=100000)
until_says limit 'the workers ended with status 75' "$job"
while [ "$(field "$job" JobState)" != PENDING ]; do sleep 0.3; done
scontrol update "JobId=$job" StartTime=now
until_says limit 'resuming from .*step-' "$job"
scancel "$job"
while [ "$(field "$job" JobState)" = RUNNING ] || [ "$(field "$job" JobState)" = COMPLETING ]; do sleep 0.3; done

echo '-- a worker that is killed'
job=$(WAIT=3 submit killed --nodes=2 --time=30 -- --set run.steps=60)
until [ -d "$folder/killed/checkpoints/step-000005" ]; do
  [ "$(field "$job" JobState)" != FAILED ] || fail 'ended too early' killed
  sleep 0.1
done
pkill -KILL -f -- "run.dir=$folder/killed .*--agent researcher" || fail 'no worker to kill' killed
until_says killed 'the workers ended with status 137' "$job"
done_well killed "$job"
grep -q 'resuming from .*step-' "$folder/killed.log" || fail 'it began anew' killed
test -d "$folder/killed/checkpoints/step-000060" || fail 'no checkpoint of the last step' killed

echo '-- an agent on two machines'
job=$(MACHINES=planner=2 submit machines --nodes=3 --time=30 --)
done_well machines "$job"
grep -q 'machine 1 takes part in planner' "$folder/machines.log" || fail 'the second machine did not take part' machines
echo 'test-slurm: all of it worked'
