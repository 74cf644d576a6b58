#!/bin/sh
# Gathers the wheels of the image in FOLDER, in place of older ones: in FOLDER/image those of DIOS, with the extras
# that the image has, and in FOLDER/lister those of the program that lists the packages. Both are named nowhere else.
# All have the versions and hashes of dev.lock, and none is unpacked before its hash was checked.
# usage: wheels.sh PYTHON FOLDER, where PYTHON has venv and is of the image's version
set -eu

source=$(cd "$(dirname "$0")/.." && pwd)
python=$1
folder=$2
gathered=$folder.new
tools=$gathered/tools
pip=$tools/bin/pip

rm -rf "$gathered"
mkdir -p "$gathered"
"$python" -m venv "$tools"
# Earlier versions of pip take no hashes from constraints.
sed -n '/^pip==/,/[^\\]$/p' "$source/dev.lock" >"$tools/pip.txt"
"$pip" install --require-hashes --requirement "$tools/pip.txt"
set -- --require-hashes --only-binary=:all: --constraint "$source/dev.lock"
"$pip" install "$@" hatchling
"$pip" wheel --no-index --no-deps --no-build-isolation --wheel-dir "$gathered/image" "$source"
for wheel in "$gathered"/image/*.whl; do
  printf '%s[cluster,metrics] --hash=sha256:' "$wheel"
  sha256sum "$wheel" | cut -d ' ' -f 1
done >"$tools/own.txt"
"$pip" download "$@" --dest "$gathered/image" --requirement "$tools/own.txt"
"$pip" download "$@" --dest "$gathered/lister" cyclonedx-bom
rm -rf "$tools" "$folder"
mv "$gathered" "$folder"
