"""The operators' command line: `.venv/bin/bufferctl`, or `.venv/bin/python -m bufferctl`."""

import io
import os
import signal
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

try:
    import typer
    from typer.core import TyperGroup

    from bufferctl.commands import conversation, cost, dead, door, rules, secret, stage, tenant, tune
    from bufferctl.errors import EXIT_STATUSES, Failed, Misused, errors_of_aws
    from bufferctl.formatting import as_json, blocks_of
    from bufferctl.options import Given
    from bufferctl.stage import ROOT, deployed_commit, find_account, stages
    from bufferctl.terminal import show_error, show_result
except ModuleNotFoundError as missing:
    sys.exit(
        f"The Python package '{missing.name}' is missing. Run `make setup`, then this command with .venv/bin/python."
    )

EPILOG = """\b
exit statuses:
""" + "".join(f"  {code:<3}  {meaning}\n" for code, meaning in EXIT_STATUSES.items())
EPILOG += """\b
examples:
  bufferctl --stage prod conversation list --tenant acme
  bufferctl conversation show acme/whatsapp/106540352242922/491701234567 --stage prod
  bufferctl rules set tenant:acme '{"silenceMs": 2000}' --stage prod
  bufferctl send 'Hey'
"""

app = typer.Typer(rich_markup_mode=None, epilog=EPILOG)  # without markup, --help needs no rich
app.add_typer(stage.app)
app.add_typer(cost.app)
app.add_typer(tune.app)
for each in (conversation, rules, secret, dead, door, tenant):
    app.add_typer(each.app, name=each.__name__.rpartition(".")[2])


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    wants_json = "--json" in arguments
    _prepare_output(wants_json=wants_json)
    given = Given()
    try:
        with errors_of_aws():
            ended = _run(arguments, given)
        if isinstance(ended, tuple):
            show_result(given, *ended)
        elif ended is not None and not isinstance(ended, int):
            show_result(given, ended, *blocks_of(ended))
        print(end="", flush=True)
        if isinstance(ended, int):
            return ended
    except Failed as error:
        if wants_json:
            problem = {"error": {"message": str(error), "exitStatus": error.code}}
            print(as_json(problem, indent=None), file=sys.stderr)
        else:
            show_error(str(error))
        return error.code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # The reader of a pipe, such as `head`, has closed the pipe. Discard the buffered output, because Python writes
        # buffered output when it exits, and the closed pipe would cause another error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _run(arguments: Sequence[str], given: Given) -> Any:
    """Return what the command returns, or an exit status. Raise Misused for wrong usage."""
    try:
        return command_line().main(arguments, prog_name="bufferctl", standalone_mode=False, obj=given)
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        text = error.format_message().rstrip(".")
        hint = f" See `{context.command_path} --help`." if context else ""
        raise Misused(f"{text}{'' if text.endswith('?') else '.'}{hint}") from error
    except typer.Abort as error:
        raise Misused("There is no terminal to ask at.") from error
    except SystemExit as error:
        # After a write to a closed pipe, typer exits.
        raise error.__context__ if isinstance(error.__context__, BrokenPipeError) else error from None


def command_line() -> TyperGroup:
    """Return the parser. Each command also has the options of the root, so that these may follow the command."""
    root = typer.main.get_command(app)
    assert isinstance(root, TyperGroup)
    shared = [each for each in root.params if each.name in Given.__dataclass_fields__]
    groups = [root]
    for group in groups:
        for command in group.commands.values():
            command.params += shared
            if isinstance(command, TyperGroup):
                groups.append(command)
    return root


def _keep(context: typer.Context, option: typer.CallbackParam, value: Any) -> None:
    """Keep an option's value. Ignore its absence, because it may stand before the command."""
    if value and context.obj:
        setattr(context.obj, str(option.name), value)


def _say_version(context: typer.Context, wanted: bool) -> None:  # noqa: FBT001 - typer calls it
    if wanted:
        from bufferctl.checkout import CHANGED, commit  # noqa: PLC0415 - only this option needs it

        version, ours = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"], commit()
        print(f"bufferctl {version} ({ours or 'not a git checkout'})")
        given: Given = context.obj
        if getattr(context.get_parameter_source("stage"), "name", "") == "COMMANDLINE":
            account = find_account(given.stage, profile=given.profile, region=given.region, outputs=given.outputs)
            theirs = deployed_commit(account, given.stage)
            verdict = "the same" if ours and ours == theirs and CHANGED not in ours else "they differ, or files changed"
            print(f"stage {given.stage} ({theirs or 'not deployed from a git checkout'}): {verdict}")
        raise typer.Exit


def _shared(name: str, text: str, **more: Any) -> Any:
    # `--version` needs these options, wherever they stand, so they are read before it.
    return typer.Option(name, help=text, callback=_keep, expose_value=False, is_eager=True, **more)


@app.callback()
def bufferctl(
    *,
    stage: Annotated[
        str | None,
        _shared("--stage", "The stage; default: local, which `make up` starts.", autocompletion=lambda: [*stages()]),
    ] = None,
    profile: Annotated[str | None, _shared("--profile", "A profile of your AWS configuration.")] = None,
    region: Annotated[str | None, _shared("--region", "The stage's region; default: that in cdk.json.")] = None,
    outputs: Annotated[
        Path | None,
        # The console runs in another folder.
        _shared("--outputs", "outputs.json of a local stage in another folder.", resolve_path=True),
    ] = None,
    json: Annotated[bool, _shared("--json", "Print JSON, for programs.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, help="Print the commit, with --stage also the stage's.")
    ] = False,
) -> None:
    """Operate a stage of the message buffer. The options of all commands may stand before or after the command."""


def _prepare_output(*, wants_json: bool) -> None:
    """Let stdout and stderr accept every character. JSON is UTF-8. Other encodings may show `?`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace", encoding="utf-8" if wants_json else None)


if __name__ == "__main__":
    sys.exit(main())
