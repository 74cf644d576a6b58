#!/bin/sh
# Runs beside the first node: writes a fresh join token for each NAME, and ends. usage: tokens.sh NAME…
# Each token admits one node and expires; the files can be read by the nodes' user only. Who has joined
# already does not look at its own.
set -eu
umask 077

data=${NODE_DATA:-/var/lib/dios}
folder=${NODE_TOKEN_FOLDER:-/run/dios-join}

for name in "$@"; do
  dios-node token --data "$data" --valid 10min --json |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["token"])' >"$folder/.$name"
  mv "$folder/.$name" "$folder/$name"
done
