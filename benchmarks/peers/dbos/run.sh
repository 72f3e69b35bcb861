#!/usr/bin/env bash
# Measures DBOS for Python: run.sh POSTGRES_URL [options of bench.py]. Prints one line of JSON per result.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
url=${1:?usage: run.sh POSTGRES_URL}
shift
../install
.venv/bin/python bench.py "$url" "$@"
.venv/bin/python takeover.py "$url" --seconds "${STEPFAST_PEER_TAKEOVER_SECONDS:-60}"
