#!/bin/sh
# Starts the Sentinel of this pod. It keeps its state, such as the current master, in /data.
set -eu
file=/data/sentinel.conf
[ -s "$file" ] || cat >"$file" <<TEXT
sentinel resolve-hostnames yes
sentinel announce-hostnames yes
sentinel monitor team mgrpo-redis-0.mgrpo-redis 6379 2
sentinel down-after-milliseconds team 10000
sentinel failover-timeout team 60000
TEXT
# The address and the password may have changed since the last start.
sed -i '/^bind \|^protected-mode \|^sentinel announce-ip \|^sentinel auth-/d' "$file"
cat >>"$file" <<TEXT
bind $POD_IP
protected-mode no
sentinel announce-ip $POD_NAME.mgrpo-redis
sentinel auth-user team redis:sentinel
sentinel auth-pass team $SENTINEL_PASSWORD
TEXT
exec redis-server "$file" --port 26379 --sentinel
