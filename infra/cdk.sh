#!/bin/sh
# `make setup` links .venv/bin/cdk to this: the CDK CLI and the Node of this project. The one that the wheel brings
# downloads a Node of its own, and shows nothing of a question until it has been answered.
cd "$(dirname "$(readlink -f "$0")")/.." || exit 1
exec .venv/bin/python -m infra.cli "$@"
