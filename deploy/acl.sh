#!/usr/bin/env bash
# acl.sh FOLDER OPTION...: the users of a run's Redis, by the rules of `mgrpo store acl`, whose options these are.
# Writes FOLDER/users.acl, for redis-server --aclfile, and for each user that has none yet a password,
# FOLDER/USER.password. Prints the users: first that of the whole run, named like it, then one for each agent, main
# agent first, and last that of mgrpo status.
set -euo pipefail
if [ $# -lt 3 ]; then
  echo 'usage: deploy/acl.sh FOLDER -c CONFIG --set store.url=URL [OPTION...]' >&2
  exit 2
fi
mgrpo=${MGRPO:-$(dirname "$0")/../bin/mgrpo}
folder=$1
shift
umask 077
mkdir -p "$folder"
commands=$("$mgrpo" store acl "$@")
# Nobody can log in as the default user, but it has every right: Redis replays its append-only file as that user, and
# would leave out every command that the user may not give.
file="user default reset off ~* &* +@all"$'\n'
while read -r _ _ user rules; do # ACL SETUSER NAME RULES
  password=$folder/$user.password
  if [ ! -s "$password" ]; then
    head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n' >"$password"
  fi
  file+="user $user #$(sha256sum <"$password" | cut -d ' ' -f 1) $rules"$'\n'
  echo "$user"
done <<<"$commands"
printf %s "$file" >"$folder/users.acl"
