#!/bin/sh
# Starts the Redis server of this pod as the master or as a replica. Its configuration file is written anew at each start; while the server
# runs, Sentinels change its role in that file.
set -eu
me=$POD_NAME.mgrpo-redis
# The other pods' Sentinels name the current master. If no Sentinel answers, all pods are starting: then the master is the last one that
# this pod's Sentinel recorded, or pod 0 at the very first start. If the choice is wrong, the Sentinels correct it.
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
# A master without a connected replica refuses writes.
min-replicas-to-write 1
min-replicas-max-lag 10
TEXT
[ "$master" = "$me" ] || echo "replicaof $master 6379" >>/data/redis.conf
exec redis-server /data/redis.conf
