#!/usr/bin/env bash
# Measures pgqueuer: run.sh POSTGRES_URL [options of bench.py]. One line of JSON per result.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
url=${1:?usage: run.sh POSTGRES_URL}
shift
if ! cmp -s requirements.txt .venv/installed; then
    rm -rf .venv
    python3 -m venv .venv
    .venv/bin/pip install --quiet --disable-pip-version-check --requirement requirements.txt >&2
    cp requirements.txt .venv/installed
fi
.venv/bin/python bench.py "$url" "$@"
