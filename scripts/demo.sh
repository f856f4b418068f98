#!/usr/bin/env bash
# From a fresh checkout to the demonstration: sets up, builds, runs `pagehaul demo`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH=$PATH:$HOME/.cargo/bin

bash scripts/setup.sh
cargo build --release --locked -p pagehaul
exec "${CARGO_TARGET_DIR:-target}/release/pagehaul" demo "$@"
