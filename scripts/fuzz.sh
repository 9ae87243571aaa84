#!/usr/bin/env bash
# Runs each fuzz target for a while: `FUZZ_SECONDS=600 scripts/fuzz.sh`.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${FUZZ_SECONDS:-600}

if [ ! -d fuzz ]; then
    echo "skipped: this version has no fuzz targets" >&2
elif ! cargo +nightly fuzz --version >/dev/null 2>&1; then
    echo "skipped: fuzzing needs a nightly toolchain and cargo-fuzz" \
        "(rustup toolchain install nightly && cargo install cargo-fuzz)" >&2
else
    for target in $(cargo +nightly fuzz list); do
        cargo +nightly fuzz run "$target" -- -max_total_time="$seconds"
    done
fi
