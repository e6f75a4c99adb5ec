#!/bin/sh
# `make setup` links .venv/bin/cdk to this: the CDK CLI and the Node of this project. The one that the wheel brings
# downloads a Node of its own, and shows nothing of a question until it has been answered.
project=$(dirname "$(readlink -f "$0")")/..
if [ -f cdk.json ] && ! [ cdk.json -ef "$project/cdk.json" ]; then
  case " $*" in *" --app"* | *" -a"*) ;; *)
    echo "This cdk runs only this project's app: for an app of yours give --app and --output with full paths." >&2
    exit 1 ;;
  esac
fi
cd "$project" || exit 1
exec .venv/bin/python -m infra.cli "$@"
