#!/usr/bin/env bash
# Measures Cloacina: run.sh STORE SHAPE [ITERATIONS CONCURRENCY]. STORE is `sqlite`, for a new file in the temporary folder, or
# the URL of a Postgres server. SHAPE is `simple`, `parallel` or `pipeline`. Prints one line of JSON per result.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
usage="usage: run.sh sqlite|POSTGRES_URL simple|parallel|pipeline [ITERATIONS CONCURRENCY]"
store=${1:?$usage} shape=${2:?$usage} iterations=${3:-1000} concurrency=${4:-128}
cargo build --quiet --release --locked
if [ "$store" = sqlite ]; then
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    store=sqlite://$folder/bench.db
fi
"${CARGO_TARGET_DIR:-target}/release/cloacina-bench" "$shape" "$store" "$iterations" "$concurrency"
