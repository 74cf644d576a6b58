#!/bin/sh
# Runs next to the first node: writes a new invitation for each NAME, and ends. usage: tokens.sh NAME…
# Each admits one node and expires; only the nodes' user can read the files. A node that has joined
# already ignores its invitation.
set -eu
umask 077

data=${NODE_DATA:-/var/lib/dios}
folder=${NODE_TOKEN_FOLDER:-/run/dios-join}

for name in "$@"; do
  dios-node invite --data "$data" --valid 10min --json |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["token"])' >"$folder/.$name"
  mv "$folder/.$name" "$folder/$name"
done
