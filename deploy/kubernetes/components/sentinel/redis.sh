#!/bin/sh
# The Redis server of this pod: the master, or a replica of it. Sentinels have it write a changed role into its file, which is made anew at each start.
set -eu
me=$POD_NAME.mgrpo-redis
# The other pods' Sentinels know the present master. If none answers, all are starting: this pod's Sentinel knew the last one, and the first
# master ever is pod 0. Sentinels correct a server that is wrong here.
master=
for i in 0 1 2; do
  [ -n "$master" ] || master=$(timeout 3 redis-cli -h "mgrpo-redis-$i.mgrpo-redis" -p 26379 sentinel get-master-addr-by-name team 2>/dev/null | head -n 1) || true
done
[ -n "$master" ] || [ ! -s /data/sentinel.conf ] || master=$(sed -n 's/^sentinel monitor team \([^ ]*\) .*/\1/p' /data/sentinel.conf)
master=${master:-mgrpo-redis-0.mgrpo-redis}
cp /etc/redis/conf/redis.conf /data/redis.conf
cat >>/data/redis.conf <<TEXT
bind $POD_IP
replica-announce-ip $me
masteruser redis:replica
masterauth $REPLICA_PASSWORD
# A master that the others have lost takes no writes.
min-replicas-to-write 1
min-replicas-max-lag 10
TEXT
[ "$master" = "$me" ] || echo "replicaof $master 6379" >>/data/redis.conf
exec redis-server /data/redis.conf
