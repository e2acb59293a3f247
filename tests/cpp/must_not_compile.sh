#!/bin/sh
# usage: must_not_compile.sh COMPILER FILE INCLUDE_FOLDER...
# The file must not compile, with one error, and the compiler must say what each "// expect:" line of the file says.
compiler=$1 file=$2
shift 2
for folder; do shift; set -- "$@" "-I$folder"; done
output=$("$compiler" -std=c++20 -fsyntax-only "$@" "$file" 2>&1) && { echo "$file compiles"; exit 1; }
errors=$(echo "$output" | grep -c 'error:')
[ "$errors" = 1 ] || { echo "$output"; echo "$errors errors instead of one"; exit 1; }
sed -n 's|^// expect: ||p' "$file" | while read -r text; do
  echo "$output" | grep -qF "$text" || { echo "$output"; echo "nothing says: $text"; exit 1; }
done
