"""`bufferctl tune`, which measures how many batches are cut, and recommends a silence."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from bufferctl.commands.rules import change
from bufferctl.curve_picture import svg
from bufferctl.errors import Failed, Misused
from bufferctl.formatting import Block, table
from bufferctl.history import measure, read_history, read_rules
from bufferctl.judging import learn_and_judge
from bufferctl.options import Ctx, Shown, read_json
from message_buffer.json_object import Json
from message_buffer.tuning.curve import WITHIN_MS, Counts, curve, going_on, mean_wait_ms, recommend

GOES_ON = "goes on: the author wrote again within 8 s of a batch's last message, and nobody had answered."
app = typer.Typer()


@app.command()
def tune(  # noqa: PLR0913 - an option for each choice
    ctx: Ctx,
    history: Annotated[Path | None, typer.Argument(help="a recorded history, JSON lines, instead of the stage")] = None,
    *,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant.")] = None,
    platform: Annotated[str | None, typer.Option(help="Only this platform.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only this agent of the tenant.")] = None,
    cut_share: Annotated[
        str, typer.Option(metavar="PERCENT", help="Recommend the shortest silence that cuts at most this share.")
    ] = "20%",
    mean_wait: Annotated[str, typer.Option(metavar="SECONDS", help="Recommend this mean wait instead: 4s.")] = "",
    weeks: Annotated[int, typer.Option(min=1, max=26, help="Count this week and the ones before.")] = 4,
    rules: Annotated[str, typer.Option(help="Replay the history by these rules, over the defaults (JSON).")] = "",
    apply: Annotated[bool, typer.Option("--apply", help="Store the recommendation in the rules.")] = False,
    picture: Annotated[Path | None, typer.Option(help="Write the curve to this file, as SVG.")] = None,
    learn: Annotated[bool, typer.Option("--learn", help="Judge the learned wait on this stage.")] = False,
    turns: Annotated[Path | None, typer.Option("--table", help="Learn from this table of turns.")] = None,
    switch_on: Annotated[
        str | None, typer.Option(metavar="TENANT", help="Let the learned wait decide, if it cuts less.")
    ] = None,
) -> Shown:
    """Show how many batches are cut at which silence, and recommend a silence."""
    if learn or switch_on or turns:
        if learn == bool(switch_on) or history or rules or apply or picture or tenant or platform or agent:
            raise Misused(
                "Name --learn or --switch-on, and of the other options only --table, --mean-wait and --weeks. "
                "The turns are those of the whole stage."
            )
        mean_ms = _number(mean_wait, "s") * 1_000 if mean_wait else None
        return learn_wait(ctx, ctx.obj.ask("tune.read", weeks=weeks, turns=True), turns, mean_ms, tenant=switch_on)
    _check(history, rules, of_a_stage=bool(apply or tenant or platform or agent))
    if agent and not tenant:
        raise Misused("An --agent needs its --tenant.")
    goal = _goal(mean_wait, cut_share)
    lines, given = read_history(history) if history else {}, read_json(rules or "{}", what="rules")
    replays: list[Json] = []
    if history:
        counts, replayed = measure(lines, read_rules(given))
        replays.append({"rules": rules or "the defaults", **replayed})
        found: list[tuple[Json, Counts]] = [({"history": str(history)}, counts)]
    else:
        asked = ctx.obj.ask("tune.read", weeks=weeks)["scopes"]
        found = [(_names(scope), counts) for scope, counts in asked.items()]
        wanted = {"tenant": tenant, "platform": platform, "agent": agent}
        found = [each for each in found if all(part in (None, each[0][name]) for name, part in wanted.items())]
        counts = sum((Counter(each) for _, each in found), Counter())
    scopes = [{**names, **_summary(each, goal)} for names, each in found]
    every, rates = _summary(counts, goal), curve(counts)
    points = {ms: rate._asdict() for ms, rate in rates.items()}
    patch = {"silenceMs": every["silenceMs"], "typingInferenceMs": 0}
    if history and not every["why"]:
        best = {**given, **patch}
        replays.append({"rules": json.dumps(best), **measure(lines, read_rules(best))[1]})
    blocks = _blocks(scopes, every, points, replays)
    result = {"scopes": scopes, "all": every, "curve": points, "replays": replays}
    if picture:
        _write(picture, svg(rates, now=(every["meanWaitMs"], going_on(counts)), best_ms=every["silenceMs"]))
        blocks.append(f"The curve is in {picture}.")
    if apply:
        if every["why"]:
            raise Failed(f"Nothing was stored: {every['why']}.")
        scope = f"agent:{_part(tenant)}/{_part(agent)}" if agent else f"tenant:{_part(tenant)}" if tenant else "stage"
        changed, text = change(ctx, scope, json.dumps({"platformOverrides": {platform: patch}} if platform else patch))
        return {**result, "applied": changed}, *blocks, f"{scope}\n{text}"
    return result, *blocks


def learn_wait(ctx: Ctx, read: Json, turns: Path | None, mean_wait_ms: float | None, *, tenant: str | None) -> Shown:
    """Show what the learned wait would cut, at this mean wait or today's. If a tenant is named, switch it on there, or
    raise Failed if it may not cut less than one wait with the same mean."""
    model, judged = learn_and_judge(read, mean_wait_ms, turns)
    mean = _seconds(round(judged.mean_wait_ms))
    waits = (("learned", judged.share_learned), ("one for all", judged.share_fixed))
    rows = table([{"wait": name, "mean": mean, "cut": f"{share:.1%}"} for name, share in waits])
    share, low, high = (f"{100 * each:.1f}" for each in judged.gain)
    gain = f"the learned wait cuts {share} percentage points ({low} to {high}) less of the turns"
    batches = f"and makes {abs(judged.more_batches):,} {'fewer' if judged.more_batches < 0 else 'more'} batches of them"
    said = f"On {judged.turns:,} turns that it was not trained on, {gain}, {batches}."
    result = {"learned": model, **judged._asdict(), "gain": judged.gain._asdict()}
    if tenant is None:
        return result, said, rows, "Nobody waits by it. To let it decide: bufferctl tune --switch-on TENANT"
    if judged.gain.low <= 0 or judged.more_batches > 0:
        why = "it may not cut less than one wait, or makes more batches"
        raise Failed(f"The learned wait was not switched on, because {why}. {said}")
    scope = f"tenant:{_part(tenant)}"
    changed, text = change(ctx, scope, json.dumps({"wait": "learned", "learned": model}))
    return {**result, **changed}, said, rows, f"{scope}\n{text}", f"To take it back: bufferctl rules undo {scope}"


def _check(history: Path | None, rules: str, *, of_a_stage: bool) -> None:
    """Raise Misused if an option does not fit a history, or a stage."""
    if history and of_a_stage:
        raise Misused(
            "A history has no --tenant, --platform or --agent, and nothing to --apply to. To store what it recommends: "
            "`bufferctl rules set`."
        )
    if rules and not history:
        raise Misused("--rules need a history. To change the rules of a stage: `bufferctl rules set`.")


def _names(scope: str) -> Json:
    parts = (part.replace("%2F", "/").replace("%25", "%") for part in scope.split("/"))
    return dict(zip(("tenant", "platform", "agent"), parts, strict=True))


def _goal(mean_wait: str, cut_share: str) -> dict[str, float]:
    if not mean_wait:
        return {"cut_share": _number(cut_share, "%") / 100}
    if (mean_wait_ms := _number(mean_wait, "s") * 1_000) > WITHIN_MS:
        raise Misused(f"A --mean-wait has at most {_seconds(WITHIN_MS)}, within which authors count as going on.")
    return {"mean_wait_ms": mean_wait_ms}


def _number(text: str, unit: str) -> float:
    if not (match := re.fullmatch(r"(\d{1,2}(?:\.\d+)?)" + unit, text)):
        raise Misused(f"Write {'20%' if unit == '%' else '4s'}, with the unit, not {text!r}.")
    return float(match[1])


def _summary(counts: Counts, goal: dict[str, float]) -> Json:
    """Return what was measured, and what is recommended or why nothing is."""
    batches, best = counts.get("batches", 0), recommend(counts, **goal)
    silence_ms, cut, why = (None, None, best) if isinstance(best, str) else (best[0], best[1]._asdict(), None)
    measured = {"batches": batches, "goesOn": going_on(counts)._asdict(), "meanWaitMs": mean_wait_ms(counts)}
    return {**measured, "silenceMs": silence_ms, "cut": cut, "why": why}


def _blocks(scopes: list[Json], every: Json, points: dict[int, Json], replays: list[Json]) -> list[Block]:
    if not every["batches"]:
        return ["No batches were counted here. While batches are emitted, a stage stores its counts once a minute."]
    rows = [*scopes, *([{"tenant": "all", **every}] if len(scopes) != 1 else [])]
    blocks: list[Block] = [table([_row(each) for each in rows]), GOES_ON, "If every batch waited for:"]
    blocks.append(table([{"silence": _seconds(ms), "cut": _share(rate)} for ms, rate in points.items()]))
    if replays:
        shown = [{**each, "cut": f"{each['cut']:.1%}", "meanWaitMs": round(each["meanWaitMs"])} for each in replays]
        blocks += ["The history, replayed exactly; cut: the author wrote again within 8 s, before our recorded answer:"]
        blocks += [table(shown)]
    if every["why"]:
        more = "Give a longer history." if replays else "Wait for more, or name a wider scope or more --weeks."
        return [*blocks, f"No recommendation: {every['why']}. {more}"]
    return [*blocks, f"Recommended: silenceMs {every['silenceMs']}, which cuts {_share(every['cut'])} of the batches."]


def _row(summary: Json) -> dict[str, Any]:
    names: Json = {name: summary[name] for name in ("history", "tenant", "platform", "agent") if name in summary}
    recommended = _seconds(summary["silenceMs"]) if summary["silenceMs"] else None
    measured = {"goes on": _share(summary["goesOn"]), "mean wait": _seconds(summary["meanWaitMs"])}
    return {**names, "batches": summary["batches"], **measured, "recommended": recommended}


def _share(rate: Json) -> str:
    return f"{rate['share']:.0%} ({rate['low']:.0%} to {rate['high']:.0%})"


def _seconds(ms: float) -> str:
    return f"{ms / 1_000:g} s" if ms % 100 == 0 else f"{ms / 1_000:.2f} s"


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, "utf-8")
    except OSError as error:
        raise Failed(f"Cannot write {file}: {error}.") from error


def _part(name: str | None) -> str:
    """Return a name as a part of a scope."""
    return (name or "").replace("%", "%25").replace("/", "%2F")
