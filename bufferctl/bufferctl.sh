#!/bin/sh
# `make setup` links .venv/bin/bufferctl to this. -P: a file in the caller's folder is not taken for a module.
root=$(dirname "$(dirname "$(readlink -f "$0")")")
PYTHONPATH=$root exec "$root/.venv/bin/python" -P -m bufferctl "$@"
