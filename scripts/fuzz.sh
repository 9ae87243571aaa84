#!/usr/bin/env bash
# Runs the generators of hostile input with many cases, then, where there is a nightly toolchain, each
# fuzz target for a while: `FUZZ_CASES=20000 FUZZ_SECONDS=600 scripts/fuzz.sh`. The corpus of the
# fuzzers is kept in fuzz/corpus. A failed case is printed, shrunk; with its seed kept it is tried
# first from then on.
set -euo pipefail
cd "$(dirname "$0")/.."
cases=${FUZZ_CASES:-20000}
seconds=${FUZZ_SECONDS:-600}

# NBD, the disk format, the configuration; then a daemon's API, and its export beside nbdkit.
export PROPTEST_CASES=$cases
cargo test -p forebay-export --test nbd fuzz::
cargo test -p forebay-engine --test format_mutations
cargo test -p forebay-cli --bin forebay config
PROPTEST_CASES=$((cases / 4)) cargo test -p forebay-cli --test cli -- api:: requests::

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
