#!/usr/bin/env bash
# A private Docker engine for tests/compose, from Debian's own packages, for machines without one. Needs root.
#
#   engine.sh start DIR   installs what is missing, starts dockerd on DIR/docker.sock, makes the base image
#                         hostless-test/debian:1 (Debian with python3 and pip), prints DOCKER_HOST
#   engine.sh stop DIR    ends it, removes its data and puts the firewall rules back
set -euo pipefail
verb=${1:?start or stop}
dir=${2:?folder for the engine}
image=hostless-test/debian:1
bridge=hostless-test # its own, so that an engine which is here already keeps docker0
export DOCKER_HOST=unix://$dir/docker.sock DEBIAN_FRONTEND=noninteractive

wait_until() { # SECONDS COMMAND...
  local until=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < until)) || return 1
    sleep 0.2
  done
}

install_packages() {
  command -v dockerd docker-compose debootstrap iptables >/dev/null && [ "$(command -v dockerd docker-compose debootstrap iptables | wc -l)" = 4 ] && return
  apt-get -qq update
  # policy-rc.d: Debian would start a daemon of its own at once
  local policy=/usr/sbin/policy-rc.d made=
  [ -e "$policy" ] || { printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy" && made=1; }
  apt-get -qq install -y --no-install-recommends docker.io docker-compose containerd runc iptables debootstrap >"$dir/apt.log" 2>&1 ||
    { tail -20 "$dir/apt.log" >&2; exit 1; }
  [ -z "$made" ] || rm -f "$policy"
}

make_base_image() {
  docker image inspect "$image" >/dev/null 2>&1 && return
  local mirror
  mirror=$(awk '/^URIs:/ {print $2; exit} /^deb / {for (i = 2; i <= NF; i++) if ($i ~ /^http/) {print $i; exit}}' \
    /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list 2>/dev/null)
  debootstrap --variant=minbase --include=ca-certificates,python3,python3-pip bookworm "$dir/root" "$mirror" >"$dir/debootstrap.log" 2>&1 ||
    { tail -20 "$dir/debootstrap.log" >&2; exit 1; }
  cp /etc/ssl/certs/ca-certificates.crt "$dir/root/etc/ssl/certs/" # this machine's own authorities, if it has any
  rm -rf "$dir"/root/var/cache/apt/archives/*.deb
  tar -C "$dir/root" --exclude='./dev/*' -c . | docker import \
    -c 'ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt PIP_BREAK_SYSTEM_PACKAGES=1' - "$image" >/dev/null
  rm -rf "$dir/root"
}

case $verb in
start)
  mkdir -p "$dir"
  install_packages
  iptables-save >"$dir/iptables.before"
  ip link show "$bridge" >/dev/null 2>&1 || ip link add "$bridge" type bridge
  ip addr replace 10.213.0.1/24 dev "$bridge"
  ip link set "$bridge" up
  setsid dockerd --bridge "$bridge" --default-address-pool base=10.214.0.0/16,size=24 --data-root "$dir/data" --exec-root "$dir/exec" --pidfile "$dir/pid" -H "$DOCKER_HOST" \
    --storage-driver overlay2 >"$dir/dockerd.log" 2>&1 </dev/null &
  wait_until 60 docker version || { tail -20 "$dir/dockerd.log" >&2; exit 1; }
  make_base_image
  echo "$DOCKER_HOST"
  ;;
stop)
  docker ps -aq | xargs -r docker rm -f >/dev/null 2>&1 || true
  docker network prune -f >/dev/null 2>&1 || true
  if [ -e "$dir/pid" ]; then
    pid=$(cat "$dir/pid")
    kill "$pid" 2>/dev/null || true
    wait_until 30 test ! -e "$dir/pid" || kill -9 "$pid"
  fi
  ip link del "$bridge" 2>/dev/null || true
  [ ! -e "$dir/iptables.before" ] || iptables-restore <"$dir/iptables.before"
  awk -v dir="$dir/" 'index($2, dir) == 1 {print $2}' /proc/mounts | sort -r | xargs -r -n 1 umount -l
  rm -rf "$dir"
  ;;
*)
  echo "engine.sh: start or stop, not $verb" >&2
  exit 2
  ;;
esac
