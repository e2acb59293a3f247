#!/bin/sh
# usage: must_not_compile.sh COMPILER INCLUDE_FOLDER FILE
# The file must not compile, with one error, and the compiler must say what each "// expect:" line of the file says.
output=$("$1" -std=c++20 -fsyntax-only -I"$2" "$3" 2>&1) && { echo "$3 compiles"; exit 1; }
errors=$(echo "$output" | grep -c 'error:')
[ "$errors" = 1 ] || { echo "$output"; echo "$errors errors instead of one"; exit 1; }
sed -n 's|^// expect: ||p' "$3" | while read -r text; do
  echo "$output" | grep -qF "$text" || { echo "$output"; echo "nothing says: $text"; exit 1; }
done
