"""Print what a stage costs: `.venv/bin/python -m bufferctl.cost --stage prod --messages-per-day 100000 [--json]`."""

import argparse
import sys
from pathlib import Path

from infra import cli

try:
    from bufferctl.cost.command import cost, stages
    from bufferctl.cost.model import Traffic
    from bufferctl.cost.page import write
    from bufferctl.errors import Misused
except ModuleNotFoundError as missing:
    sys.exit(cli.missing_package(missing))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=".venv/bin/python -m bufferctl.cost", description=__doc__)
    parser.add_argument("--stage", help="a stage of cdk.json")
    parser.add_argument("--overrides", metavar="JSON", help="an object that is merged over the stage's values")
    parser.add_argument("--json", dest="form", action="store_const", const="json", default="text")
    parser.add_argument("--document", type=Path, metavar="FOLDER", help="write cost.md there instead")
    for name, field in Traffic.model_fields.items():
        text = f"{field.description} (default: {field.default:,})"
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=field.default, metavar="N", help=text)
    options = vars(parser.parse_args(arguments))
    stage, overrides, form = options.pop("stage"), options.pop("overrides"), options.pop("form")
    if folder := options.pop("document"):
        write(folder, stages())
        return 0
    try:
        print(cost(stage, options, overrides=overrides, form=form))
    except Misused as error:
        print(error, file=sys.stderr)
        return error.code
    return 0


if __name__ == "__main__":
    sys.exit(main())
