#!/usr/bin/env bash
# Runs each fuzz target for a while: `FUZZ_SECONDS=600 scripts/fuzz.sh`. The corpus is kept in
# fuzz/corpus.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${FUZZ_SECONDS:-600}

if ! cargo +nightly --version >/dev/null 2>&1; then
    echo "skipped: fuzzing needs a nightly toolchain (rustup toolchain install nightly)" >&2
    exit
fi
if ! cargo +nightly fuzz --version >/dev/null 2>&1; then
    echo "installing cargo-fuzz" >&2
    cargo +nightly install --locked cargo-fuzz
fi
(cd fuzz && cargo +nightly run -q --example seeds corpus)
for target in $(cargo +nightly fuzz list); do
    cargo +nightly fuzz run "$target" -- -max_total_time="$seconds" -max_len=65536 \
        -print_final_stats=1
done
