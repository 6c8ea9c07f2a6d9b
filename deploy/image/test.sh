#!/usr/bin/env bash
# test.sh: builds the image without a registry, on a Debian that mmdebstrap makes of packages, and trains in it (make test-image;
# root). It runs as the Kubernetes manifests run it: as user 10001, with a read-only root, no capabilities and no network.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=$PWD/build/image
missing=()
for program in buildah podman crun mmdebstrap; do command -v "$program" >/dev/null || missing+=("$program"); done
if [ ${#missing[@]} -gt 0 ]; then
  install="apt-get install -y --no-install-recommends ${missing[*]}"
  [ "$(id -u)" = 0 ] || { echo "test-image: this needs root and: $install" >&2; exit 1; }
  echo "test-image: installing ${missing[*]}"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive $install -qq >/dev/null
fi
mkdir -p "$folder/runs"
export CONTAINERS_STORAGE_CONF=$folder/storage.conf CONTAINERS_CONF=$folder/containers.conf
printf '[storage]\ndriver = "overlay"\nrunroot = "%s/run"\ngraphroot = "%s/graph"\n' "$folder" "$folder" >"$CONTAINERS_STORAGE_CONF"
printf '[containers]\ndefault_ulimits = []\n' >"$CONTAINERS_CONF" # podman's own limits are higher than root may set in some containers
if ! podman image exists localhost/debian:bookworm; then
  echo 'test-image: a Debian of packages'
  mmdebstrap --quiet --variant=minbase bookworm "$folder/base.tar"
  podman import -q "$folder/base.tar" localhost/debian:bookworm
  rm "$folder/base.tar"
fi
echo 'test-image: building'
BASE=localhost/debian:bookworm BUILDER='buildah bud -q --isolation chroot' deploy/image/build.sh localhost/mgrpo:test

rm -rf "$folder/runs"
mkdir "$folder/runs"
chown 10001:10001 "$folder/runs"
# crun needs cgroup v2. A machine may have it in addition to v1, mounted at another place.
cat >"$folder/run.sh" <<'END'
umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup
exec podman run --rm --network none --cgroups=disabled --ulimit host --user 10001:10001 --read-only --cap-drop all --security-opt no-new-privileges "$@"
END
unshare -m bash "$folder/run.sh" localhost/mgrpo:test version
# shellcheck disable=SC2046 # words
unshare -m bash "$folder/run.sh" -v "$folder/runs:/runs" localhost/mgrpo:test train examples/quickstart/team.yaml \
  --set run.dir=/runs/quickstart $(tr '\n' ' ' <.ci/quickstart-small)
test -s "$folder/runs/quickstart/checkpoints/step-000002/manifest.json"
podman image ls --format '{{.Repository}}:{{.Tag}} {{.Size}}' localhost/mgrpo
