#!/usr/bin/env bash
# Shell scripts pass shellcheck; Rust files stay short. Length only warns.
set -euo pipefail
cd "$(dirname "$0")/.."
lines_max=800

if command -v shellcheck >/dev/null; then
    shellcheck scripts/*.sh .ci/run
else
    echo "skipped: shellcheck is not installed" >&2
fi

# Lines up to the tests at the end of a file; files that hold nothing but tests are left out.
find crates -name '*.rs' ! -name '*tests.rs' ! -path '*/tests/*' -print0 | sort -z |
    while IFS= read -r -d '' file; do
        lines=$(awk '
            was_cfg_test && /^mod [a-z_]+ \{/ { tests = 1; exit }
            { was_cfg_test = /^#\[cfg\(test\)\]/ }
            END { print tests ? NR - 2 : NR }' "$file")
        if [ "$lines" -gt "$lines_max" ]; then
            echo "warning: $file has $lines lines without its tests; aim below $lines_max" >&2
        fi
    done
