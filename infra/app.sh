#!/bin/sh
# The "app" of cdk.json: runs app.py by this project's Python, so that any CDK CLI finds it without an activated .venv.
cd "$(dirname "$0")/.." || exit 1
if ! [ -x .venv/bin/python ]; then
  echo "There is no .venv that works here: run \`make setup\` first." >&2
  exit 1
fi
exec .venv/bin/python app.py
