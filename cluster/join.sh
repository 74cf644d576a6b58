#!/bin/sh
# Starts a node in a container. The first node creates the cluster; every other node joins it once, with a
# token from a file, and remembers this. usage: join.sh NAME RACK [FIRST_HOST]
# Secrets such as the token are never in the environment or in the image.
set -eu

name=$1
rack=$2
first=${3:-}
port=${NODE_PORT:-7400}
data=${NODE_DATA:-/var/lib/dios}
token=${NODE_TOKEN_FILE:-/run/dios-join/$name}
host=${NODE_HOST:-$(hostname)}

# A coordinator keeps the kernels that it compiles below HOME, the only environment variable that it gets. The
# data folder is writable and lasts.
HOME=$data/home
export HOME
(umask 077 && mkdir -p "$HOME")

set -- --data "$data" --name "$name" --rack "$rack" --listen "0.0.0.0:$port" --advertise "$host:$port"

if [ ! -e "$data/identity" ]; then
  if [ -z "$first" ]; then
    # Its output contains a token that is not needed here.
    dios-node init "$@" >/dev/null
  else
    waited=0
    until [ -s "$token" ]; do
      [ "$waited" -ne 0 ] || echo "waiting for an invitation in $token (dios-node invite on a node of the cluster)" >&2
      waited=$((waited + 1))
      [ "$waited" -le "${NODE_TOKEN_SECONDS:-600}" ] || { echo "no invitation arrived in $token; create one and restart the container" >&2; exit 1; }
      sleep 1
    done
    set -- "$@" --join "$first:$port" --invitation-file "$token"
  fi
fi

exec dios-node start "$@"
