#!/bin/sh
# Runs one job on the cluster through a node's socket, and exits with the job's status.
# usage: job.sh [PROGRAM [ARGUMENT…]]
set -eu

program=${1:-/opt/dios/cluster/job.py}
[ "$#" -eq 0 ] || shift
group=${JOB_GROUP:-jobs}

if ! dios group ls | grep -qw "$group"; then
  dios group create "$group"
fi
exec dios run "$program" --group "$group" -- "$@"
