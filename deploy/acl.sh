#!/usr/bin/env bash
# acl.sh FOLDER CONFIG OPTION...: creates the users of a run's Redis with the rules of `mgrpo store acl CONFIG OPTION...`. Writes
# FOLDER/users.acl, for redis-server --aclfile, and FOLDER/USER.password for each user without a password. Prints the users: first the user
# of the whole run, which has the run's name, then one for each agent, main agent first, and last the user of mgrpo status.
set -euo pipefail
if [ $# -lt 2 ]; then
  echo 'usage: deploy/acl.sh FOLDER CONFIG --set store.url=URL [OPTION...]' >&2
  exit 2
fi
mgrpo=${MGRPO:-$(dirname "$0")/../bin/mgrpo}
folder=$1
shift
umask 077
mkdir -p "$folder"
commands=$("$mgrpo" store acl "$@")
# Logins as the default user are disabled, but it has every right: Redis replays its append-only file as this user and would skip every
# command that it may not use.
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
