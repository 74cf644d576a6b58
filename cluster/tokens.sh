#!/bin/sh
# Runs beside the first node: writes a join token for each NAME that has none, and ends. usage: tokens.sh NAME…
# Each token admits one node and expires; the files can be read by the nodes' user only.
set -eu
umask 077

data=${NODE_DATA:-/var/lib/dios}
folder=${NODE_TOKEN_FOLDER:-/run/dios-join}

for name in "$@"; do
  # Who has joined needs none; a token that was not used in time is replaced.
  if [ -e "$folder/$name.joined" ]; then continue; fi
  dios-node token --data "$data" --valid 10m >"$folder/.$name"
  mv "$folder/.$name" "$folder/$name"
done
