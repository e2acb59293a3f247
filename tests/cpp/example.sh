#!/bin/sh
# usage: example.sh PROGRAM [ARGUMENT...]
# The program must end with 0, and the last line that it prints must begin with "ok:".
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1  # whatever it writes goes there
output=$("$@") || { code=$?; echo "$output"; echo "$1 ended with $code"; exit 1; }
echo "$output"
case $(echo "$output" | tail -n 1) in
  ok:*) ;;
  *) echo "the last line does not begin with ok:"; exit 1 ;;
esac
