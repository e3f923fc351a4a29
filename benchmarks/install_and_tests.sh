#!/usr/bin/env bash
# Seconds and MB of `make demo`, `make test` and `make test-extras` in a fresh clone, and the
# slowest tests (install_and_tests.md, slowest_tests.md). Nothing comes from pip's cache.
#   usage: bash benchmarks/install_and_tests.sh REPOSITORY COMMIT FOLDER [TARGET ...]
set -euo pipefail
repository=$1 commit=$2 folder=$3
shift 3
export PIP_NO_CACHE_DIR=1 PYTEST_ADDOPTS=--durations=0
mkdir -p "$folder"
folder=$(realpath "$folder")
git clone --quiet "$repository" "$folder/clone"
cd "$folder/clone"
git checkout --quiet "$commit"
targets=${*:-demo .venv/installed-test test .venv/installed-test-extras test-extras}

# Write the output to a log whose lines start with the seconds since the start.
logged() {
  local start=$EPOCHREALTIME
  "$@" 2>&1 | while IFS= read -r line; do
    printf '%s\t%s\n' "$(awk "BEGIN { printf \"%.1f\", $EPOCHREALTIME - $start }")" "$line"
  done
}

for target in $targets; do
  make --dry-run "$target" >/dev/null 2>&1 || continue # an older commit does not have it
  log=$folder/$(basename "$target").log start=$SECONDS
  logged make "$target" >"$log" || echo "$target failed: $log"
  size=$(du -sm .venv | cut -f1)
  echo "$target: $((SECONDS - start)) s, .venv $size MB, first output after $(head -n 1 "$log" | cut -f1) s"
  if [ "$target" = demo ]; then
    awk -F '\t' '
      $2 ~ /^Installing collected packages/ { unpack -= $1 }
      $2 ~ /^Successfully installed/ { unpack += $1 }
      $2 ~ /^[^ ]*seq2seq train/ { train = $1 }
      $2 ~ /finished after/ { trained = $1 }
      $2 ~ /^Five sentences/ {
        printf "  install %.0f s (%.0f s of them unpack packages)\n", train, unpack
        printf "  train %.0f s\n  translate %.0f s\n", trained - train, $1 - trained
      }' "$log"
  fi
done
shopt -s nullglob
cat /dev/null "$folder"/test*.log | sed -nE 's/^[^\t]*\t([0-9]+\.[0-9])[0-9]s (call|setup|teardown) +tests\/(.*)/| \1 | \2 | `\3` |/p' |
  sort -k 2 -rn | head -n 50 >"$folder/slowest.md"
echo "the fifty slowest tests: $folder/slowest.md"
