#!/usr/bin/env bash
# secrets.sh: prints the Secrets that the other files of this folder name, with fresh passwords:
#
#   deploy/kubernetes/secrets.sh | kubectl apply -f -
#
# The run's configuration is read from team.yaml, its ConfigMap. The Secret mgrpo-store-status is for mgrpo status.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The text of a ConfigMap's only key is what is indented below it.
sed -n '/^  team.yaml: |/,/^[^ ]/s/^    //p' "$here/team.yaml" >"$work/config.yaml"
mapfile -t users < <("$here/../acl.sh" "$work" -c "$work/config.yaml")
if [ ${#users[@]} -lt 3 ]; then exit 1; fi # acl.sh has said why

secret() { # NAME KEY VALUE, as YAML writes it
  printf -- '---\napiVersion: v1\nkind: Secret\nmetadata: {name: %s}\ntype: Opaque\nstringData:\n  %s: %s\n' "$@"
}
secret mgrpo-redis-acl users.acl "|
$(sed 's/^/    /' "$work/users.acl")"
run=${users[0]}
for user in "${users[@]:1}"; do
  secret "mgrpo-store-${user#"$run-"}" password "\"$(cat "$work/$user.password")\""
done
random() { head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n'; }
secret mgrpo-machines key "\"$(random)\""
secret mgrpo-health token "\"$(random)\""
