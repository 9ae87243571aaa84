#!/usr/bin/env bash
# Installs what a make target needs and is not there yet: `setup.sh demo|lint|test|bench|kernel`.
# Says nothing and takes no time when nothing is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
purpose=${1:-test}

say() { printf 'setup: %s\n' "$*" >&2; }

as_root() {
    if [ "$(id -u)" = 0 ]; then
        DEBIAN_FRONTEND=noninteractive "$@" </dev/null >&2
    else
        sudo -n env DEBIAN_FRONTEND=noninteractive "$@" </dev/null >&2
    fi
}

can_install() {
    command -v apt-get >/dev/null || return 1
    [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null
}

# Packages are asked for by what they provide, so that other distributions pass as well.
needs_command() { command -v "$1" >/dev/null || missing+=("$2"); }

find_missing_build() {
    missing=()
    needs_command cc build-essential
    needs_command pkg-config pkg-config
    needs_command curl curl
    [ -e /etc/ssl/certs/ca-certificates.crt ] || [ -d /etc/pki/tls/certs ] ||
        missing+=(ca-certificates)
}

find_missing_test() {
    missing=()
    needs_command fio fio
    needs_command nbdcopy libnbd-bin
    needs_command nbdfuse libnbd-bin
    needs_command qemu-io qemu-utils
    needs_command nbdkit nbdkit
    needs_command valgrind valgrind
    needs_command strace strace
    needs_command systemd-analyze systemd
    needs_command setpriv util-linux
    needs_command unshare util-linux
    needs_command script bsdutils
    # Of administrators, who have these places in their PATH.
    local PATH=$PATH:/usr/sbin:/sbin
    needs_command mkfs.ext4 e2fsprogs
    needs_command mkfs.xfs xfsprogs
    needs_command mkfs.btrfs btrfs-progs
    needs_command nbd-client nbd-client
    needs_command losetup mount
}

find_missing_lint() {
    missing=()
    needs_command shellcheck shellcheck
}

find_missing_bench() {
    missing=()
    needs_command fio fio
    needs_command valgrind valgrind
    needs_command qemu-nbd qemu-utils
    needs_command nbdkit nbdkit
}

find_missing_kernel() {
    missing=()
    local PATH=$PATH:/usr/sbin:/sbin
    needs_command fio fio
    [ -n "${FOREBAY_UML_KERNEL:-}" ] || needs_command linux.uml user-mode-linux
    needs_command qemu-storage-daemon qemu-system-common
    needs_command modprobe kmod
    needs_command dmsetup dmsetup
    needs_command make-bcache bcache-tools
    needs_command nbd-client nbd-client
    needs_command losetup mount
}

install_missing() {
    [ ${#missing[@]} -gt 0 ] || return 0
    if can_install; then
        say "installing ${missing[*]}"
        as_root apt-get update -q && as_root apt-get install -qy --no-install-recommends \
            "${missing[@]}" && return 0
        say "apt-get failed"
    fi
    say "missing: ${missing[*]}. To install them (Debian, Ubuntu):"
    say "    sudo apt-get update && sudo apt-get install -y ${missing[*]}"
    return 1
}

rust_version=$(sed -n 's/^channel = "\(.*\)"$/\1/p' rust-toolchain.toml)

rust_is_ready() {
    case "$(cargo --version 2>/dev/null)" in "cargo $rust_version "*) ;; *) return 1 ;; esac
    [ "$purpose" != lint ] || { cargo fmt --version && cargo clippy --version; } >/dev/null 2>&1
}

# Debian has a package of rustup since version 13. On a fresh machine the lists of packages are
# empty, and apt-cache knows nothing before the update.
rustup_from_apt() {
    can_install || return 1
    as_root apt-get update -q || true
    apt-cache policy rustup 2>/dev/null | grep -q 'Candidate: [0-9]' || return 1
    missing=(rustup)
    install_missing
}

rustup_line="curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs |"
rustup_line+=" sh -s -- -y --no-modify-path --profile minimal --default-toolchain none"

# The official script; the toolchain itself comes afterwards, with what rust-toolchain.toml names.
rustup_from_script() {
    command -v curl >/dev/null || return 1
    say "installing rustup from https://sh.rustup.rs"
    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs </dev/null |
        sh -s -- -y --no-modify-path --profile minimal --default-toolchain none >&2
}

install_rust() {
    # Where the script puts it; the Makefile looks there, too.
    PATH="${CARGO_HOME:-${HOME:-}/.cargo}/bin:$PATH"
    if rust_is_ready; then return; fi
    if ! command -v rustup >/dev/null; then
        rustup_from_apt || rustup_from_script || say "rustup could not be installed"
    fi
    if command -v rustup >/dev/null; then
        say "installing Rust $rust_version"
        rustup toolchain install "$rust_version" --profile minimal -c clippy -c rustfmt \
            </dev/null >&2 || say "rustup failed"
    fi
    if rust_is_ready; then return; fi
    say "Rust $rust_version is missing. To install it:"
    if command -v rustup >/dev/null; then
        say "    rustup toolchain install $rust_version --profile minimal -c clippy -c rustfmt"
    else
        say "    $rustup_line"
        say "and then run the same make command again"
    fi
    exit 1
}

find_missing_build
install_missing || exit 1
install_rust
case $purpose in
test)
    find_missing_test
    install_missing || say "going on: each test that needs them says so and is skipped, or fails with CI=true"
    ;;
lint)
    find_missing_lint
    install_missing || say "going on without it"
    ;;
kernel)
    find_missing_kernel
    install_missing || say "going on: what needs them says so"
    ;;
bench)
    find_missing_bench
    install_missing || say "going on: rows that need them are missed"
    ;;
esac
