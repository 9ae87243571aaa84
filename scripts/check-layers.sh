#!/usr/bin/env bash
# Holds the crates to their layers: a crate may depend only on crates of a lower layer, also for
# its tests and its build script. Two crates of one layer do not know each other.
set -euo pipefail
cd "$(dirname "$0")/.."

layer_of() {
    case $1 in
    device) echo 0 ;;
    engine) echo 1 ;;
    export | lab) echo 2 ;;
    control) echo 3 ;;
    sim | cli | bench) echo 4 ;;
    *) return 1 ;;
    esac
}

bad=0
complain() {
    printf 'error: %s\n' "$*" >&2
    bad=1
}

for manifest in crates/*/Cargo.toml; do
    crate=$(basename "$(dirname "$manifest")")
    if ! layer=$(layer_of "$crate"); then
        complain "$manifest: crate \"$crate\" has no layer; give it one in scripts/check-layers.sh"
        continue
    fi
    # Names in dependency sections, and sections of their own ([dependencies.forebay-x]).
    while read -r below; do
        if ! layer_below=$(layer_of "$below"); then
            complain "$manifest: depends on unknown crate forebay-$below"
        elif [ "$layer_below" -ge "$layer" ]; then
            complain "$manifest: \"$crate\" (layer $layer) depends on" \
                "\"$below\" (layer $layer_below)"
        fi
    done < <(awk '
        /^\[/ { inside = /dependencies/ }
        inside && match($0, /^(\[.*dependencies\.)?forebay-[a-z]+/) {
            name = substr($0, RSTART, RLENGTH); sub(/.*forebay-/, "", name); print name
        }' "$manifest")
done
exit $bad
