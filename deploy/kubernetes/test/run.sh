#!/usr/bin/env bash
# run.sh: tests the manifests on a real API server with its controllers (make test-kubernetes): strict validation under Pod Security
# `restricted`, and the Jobs' reactions to each exit status. There is no kubelet: the test itself ends the pods.
set -euo pipefail
cd "$(dirname "$0")/../../.."
folder=$PWD/build/kubernetes version=1.36.3
if ! PATH=$PATH:/usr/sbin command -v etcd >/dev/null; then
  install="apt-get install -y --no-install-recommends etcd-server"
  [ "$(id -u)" = 0 ] || { echo "test-kubernetes: etcd is missing: $install" >&2; exit 1; }
  echo 'test-kubernetes: installing etcd-server'
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive $install -qq >/dev/null
fi
mkdir -p "$folder/bin"

# Kubernetes is a Go module that refers to its parts by neighbouring folders. Here these are modules of the same release.
build() {
  cd "$folder"
  printf 'module kubernetes\n\ngo 1.26.0\n' >go.mod
  local source modules
  source=$(go mod download -json "k8s.io/kubernetes@v$version" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
  modules=$(sed -n '/^replace/,$p' "$source/go.mod" | grep -oE '^\s+k8s.io/[a-z-]+')
  {
    echo "require k8s.io/kubernetes v$version"
    echo 'replace ('
    for module in $modules; do echo "  $module => $module v0.${version#1.}"; done
    echo ')'
  } >>go.mod
  printf '//go:build tools\n\npackage tools\n\nimport (\n\t_ "k8s.io/kubernetes/cmd/kube-apiserver"\n\t_ "k8s.io/kubernetes/cmd/kube-controller-manager"\n\t_ "k8s.io/kubernetes/cmd/kubectl"\n)\n' >tools.go
  go mod tidy 2>/dev/null
  for command in kubectl kube-controller-manager kube-apiserver; do
    echo "test-kubernetes: building $command $version"
    CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=v$version" -o bin/ "k8s.io/kubernetes/cmd/$command"
  done
  touch "bin/.$version"
}
if [ ! -e "$folder/bin/.$version" ]; then (build); fi

run=$folder/run
rm -rf "$run"
mkdir -p "$run"
export KUBECONFIG=$run/kubeconfig PATH=$folder/bin:$PATH:/usr/sbin
openssl genrsa -out "$run/sa.key" 2048 2>/dev/null
echo 'testtoken,admin,1,system:masters' >"$run/tokens.csv"
cat >"$KUBECONFIG" <<'END'
apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "https://127.0.0.1:16443", insecure-skip-tls-verify: true}}]
users: [{name: admin, user: {token: testtoken}}]
contexts: [{name: test, context: {cluster: test, user: admin, namespace: team}}]
current-context: test
END
kubectl() { command kubectl --warnings-as-errors "$@"; }
pids=()
trap 'kill -9 "${pids[@]}" 2>/dev/null || true; wait 2>/dev/null' EXIT # on SIGTERM an API server would wait for its etcd
etcd --data-dir "$run/etcd" --listen-client-urls http://127.0.0.1:12379 --advertise-client-urls http://127.0.0.1:12379 \
  --listen-peer-urls http://127.0.0.1:12380 >"$run/etcd.log" 2>&1 & pids+=($!)
kube-apiserver --etcd-servers=http://127.0.0.1:12379 --cert-dir="$run/certs" --bind-address=127.0.0.1 --secure-port=16443 \
  --service-cluster-ip-range=10.96.0.0/16 --service-account-key-file="$run/sa.key" --service-account-signing-key-file="$run/sa.key" \
  --service-account-issuer=https://localhost --token-auth-file="$run/tokens.csv" --authorization-mode=RBAC \
  --disable-admission-plugins=ServiceAccount >"$run/apiserver.log" 2>&1 & pids+=($!)
# until_true COMMAND: repeats the command until it succeeds. The test fails if one of the servers ends.
until_true() {
  until "$@" >/dev/null 2>&1; do
    for pid in "${pids[@]}"; do kill -0 "$pid" 2>/dev/null || { tail -n 20 "$run"/*.log >&2; exit 1; }; done
    sleep 0.3
  done
}
until_true kubectl get --raw /readyz
kube-controller-manager --kubeconfig="$KUBECONFIG" --leader-elect=false --service-account-private-key-file="$run/sa.key" \
  --cert-dir="$run/controller" --secure-port=16444 --bind-address=127.0.0.1 >"$run/controller.log" 2>&1 & pids+=($!)

kubectl create namespace team
# enforce applies to pods. warn also applies to workloads, and a warning is an error below.
kubectl label namespace team pod-security.kubernetes.io/enforce=restricted pod-security.kubernetes.io/warn=restricted >/dev/null
echo '-- every manifest is valid'
deploy/kubernetes/secrets.sh | kubectl apply --validate=strict -f - >/dev/null
kubectl apply --dry-run=server --validate=strict -f deploy/kubernetes/machines/planner.yaml
kubectl apply --validate=strict -k deploy/kubernetes
for team in workers:kubernetes/agents gpu:kubernetes-gpu; do
  if ! diff <(kubectl kustomize "deploy/${team#*:}") <(tail -n +2 "deploy/kubernetes/testdata/${team%:*}.yaml"); then
    echo "test-kubernetes: testdata/${team%:*}.yaml differs from the output of the command that its first line names" >&2
    exit 1
  fi
done
if kubectl kustomize deploy/kubernetes | sed 's/backoffLimit/backofLimit/' | kubectl apply --dry-run=server --validate=strict -f - >/dev/null 2>&1; then
  echo 'test-kubernetes: a misspelt key was taken' >&2
  exit 1
fi

echo '-- the team on GPUs is valid, and all its pods are made'
kubectl create namespace gpu
kubectl label namespace gpu pod-security.kubernetes.io/enforce=restricted pod-security.kubernetes.io/warn=restricted >/dev/null
kubectl apply -f - >/dev/null <<<'{"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}, "handler": "nvidia"}'
deploy/kubernetes/secrets.sh | kubectl -n gpu apply --validate=strict -f - >/dev/null
kubectl -n gpu apply --validate=strict -k deploy/kubernetes-gpu
for pod in mgrpo-redis-0 mgrpo-redis-1 mgrpo-redis-2 mgrpo-vllm-planner-0 mgrpo-vllm-planner-1; do until_true kubectl -n gpu get pod $pod; done
for agent in planner researcher; do until_true kubectl -n gpu wait "job/mgrpo-$agent" --for=jsonpath='{.status.active}'=1 --timeout=1s; done

running() { kubectl get pods -l "mgrpo/agent=$1" --field-selector=status.phase=Pending -o 'jsonpath={.items[0].metadata.name}' 2>/dev/null; }
status() { kubectl get job "mgrpo-$1" -o "jsonpath=$2"; }
has_pod() { [ "$(running "$1")" ]; }
has_other_pod() { local pod; pod=$(running "$1") && [ "$pod" ] && [ "$pod" != "$2" ]; }
# end AGENT PHASE EXIT_STATUS: ends the agent's pod with this status.
end() {
  local pod
  pod=$(running "$1")
  kubectl patch pod "$pod" --subresource=status --type=merge -p "{\"status\": {\"phase\": \"$2\", \"containerStatuses\": [{\"name\": \"worker\",
    \"image\": \"x\", \"imageID\": \"x\", \"ready\": false, \"restartCount\": 0,
    \"state\": {\"terminated\": {\"exitCode\": $3, \"finishedAt\": \"2026-01-01T00:00:00Z\"}}}]}}" >/dev/null
  ended=$pod
}
expect() {
  [ "$2" = "$3" ] || { echo "test-kubernetes: $1: '$2' in place of '$3'" >&2; exit 1; }
}
until_true has_pod planner
until_true has_pod researcher
until_true kubectl get pod mgrpo-redis-0

echo '-- status 75 is no failure, and another pod follows'
end planner Failed 75
until_true has_other_pod planner "$ended"
expect 'failures after 75' "$(status planner '{.status.failed}')" ''
echo '-- a pod that is killed counts, and another pod follows'
end planner Failed 137
until_true has_other_pod planner "$ended"
expect 'failures after 137' "$(status planner '{.status.failed}')" 1
echo '-- an error ends the Job'
end researcher Failed 1
failed() { [ "$(status researcher '{.status.conditions[?(@.type=="Failed")].reason}')" = PodFailurePolicy ]; }
until_true failed
echo '-- a run that is done ends the Job well'
end planner Succeeded 0
complete() { [ "$(status planner '{.status.conditions[?(@.type=="Complete")].status}')" = True ]; }
until_true complete
echo '-- Redis with Sentinels'
kubectl config set-context --current --namespace=gpu >/dev/null
deploy/kubernetes/test/sentinel.sh
echo 'test-kubernetes: all of it worked'
