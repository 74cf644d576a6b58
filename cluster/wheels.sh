#!/bin/sh
# Gathers the wheels of the image in FOLDER, in place of older ones: in FOLDER/image those of DIOS, with the extras
# that the image has, and in FOLDER/lister those of the program that lists the packages. Both are named nowhere else.
# usage: wheels.sh PYTHON FOLDER, where PYTHON has pip and is of the image's version
set -eu

source=$(dirname "$0")/..
gathered=$2.new

rm -rf "$gathered"
"$1" -m pip wheel --wheel-dir "$gathered/image" "$source[cluster,metrics]"
"$1" -m pip wheel --wheel-dir "$gathered/lister" 'cyclonedx-bom>=7'
rm -rf "$2"
mv "$gathered" "$2"
