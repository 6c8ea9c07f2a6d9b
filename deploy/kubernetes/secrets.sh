#!/usr/bin/env bash
# secrets.sh: prints the Secrets that the other files of this folder name, with new passwords:
#
#   deploy/kubernetes/secrets.sh | kubectl apply -f -
#
# The run's configuration is read from team.yaml, its ConfigMap. The Secret mgrpo-store-status is for mgrpo status.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The lines indented below a ConfigMap's only key are its text.
sed -n '/^  team.yaml: |/,/^[^ ]/s/^    //p' "$here/team.yaml" >"$work/config.yaml"
mapfile -t users < <("$here/../acl.sh" "$work" "$work/config.yaml")
if [ ${#users[@]} -lt 3 ]; then exit 1; fi # acl.sh has printed the reason

secret() { # NAME (KEY VALUE)..., with values in YAML notation
  printf -- '---\napiVersion: v1\nkind: Secret\nmetadata: {name: %s}\ntype: Opaque\nstringData:\n' "$1"
  shift
  printf '  %s: %s\n' "$@"
}
random() { head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n'; }
# Servers that watch and copy one another (components/sentinel) have users of their own. Redis's documentation has these rules.
replica=$(random) sentinel=$(random)
printf 'user redis:%s reset on #%s %s\n' \
  replica "$(printf %s "$replica" | sha256sum | cut -d ' ' -f 1)" '+psync +replconf +ping' \
  sentinel "$(printf %s "$sentinel" | sha256sum | cut -d ' ' -f 1)" '&* +multi +slaveof +ping +exec +subscribe +config|rewrite +role +publish +info +client|setname +client|kill +script|kill' \
  >>"$work/users.acl"
secret mgrpo-redis-acl users.acl "|
$(sed 's/^/    /' "$work/users.acl")"
secret mgrpo-redis-servers replica "\"$replica\"" sentinel "\"$sentinel\""
run=${users[0]}
for user in "${users[@]:1}"; do
  secret "mgrpo-store-${user#"$run-"}" password "\"$(cat "$work/$user.password")\""
done
secret mgrpo-machines key "\"$(random)\""
secret mgrpo-health token "\"$(random)\""
