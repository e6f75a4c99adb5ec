"""Write the measured tables into the documents, from tools/bench/results: `python -m tools.bench.document`.

Each table replaces the text between `<!-- bench: name -->` and `<!-- end -->`. The other text is written by hand.
"""

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

from tools.bench.chart import Bar, Panel, svg
from tools.bench.measure import Figure, figure

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "tools" / "bench" / "results"
DOCUMENTS = ("docs/performance.md", "docs/lanes.md", "tools/bench/README.md", "README.md")
PICTURE = "docs/performance.svg"
RATE, CLIENTS = 1_000, 16
NAMES = {
    "ours": "ours",
    "naive": "naive",
    "bullmq": "BullMQ, keeps the last",
    "bullmq keep-all": "BullMQ, keeps all",
    "bare": "bare",
    "ping": "PING",
    "timer": "nothing but a timer",
}
CONTESTANTS = ("ours", "naive", "bullmq", "bullmq keep-all", "bare", "ping")


def results(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text("utf-8"))


def write(root: Path) -> None:
    for name in DOCUMENTS:
        (root / name).write_text(filled((root / name).read_text("utf-8")), "utf-8")
    (root / PICTURE).write_text(picture(results("ingest"), results("live")), "utf-8")


def filled(text: str) -> str:
    def table(found: re.Match[str]) -> str:
        return f"{found[1]}\n{TABLES[found[2]]()}\n{found[3]}"

    return re.sub(r"(<!-- bench: (\w+) -->).*?(<!-- end -->)", table, text, flags=re.DOTALL)


def picture(ingest: Any, live: Any) -> str:
    by_name = _cpu(ingest)
    cpu = [Bar(NAMES[name], by_name[name]) for name in CONTESTANTS]
    late = [
        Bar(f"{NAMES[name].partition(',')[0]}, {what}", figure(_of(live, name, what, rate=RATE, column="p99")))
        for what in ("timed", "immediate")
        for name in ("ours", "bullmq", "naive")
    ]
    return svg([
        Panel(f"Server CPU of a message, µs ({CLIENTS} clients, 200 bytes)", cpu, is_log=False),
        Panel(f"Lateness, p99 in ms ({RATE:,} batches due a second)", late, is_log=True),
    ])  # fmt: skip


def _figure(row: Any) -> Figure:
    return Figure(
        row.get("median", (row["q1"] + row["q3"]) / 2),
        row["q1"],
        row["q3"],
        row["rounds"],
    )


def _cpu(ingest: Any) -> dict[str, Figure]:
    """Return the CPU time of a 200-byte message, by contestant."""
    return {
        each["contestant"]: _figure(each["server_cpu_us"])
        for each in ingest["contestants"]
        if (each["clients"], each["bytes"]) == (CLIENTS, 200)
    }


def _of(live: Any, name: str, what: str, *, rate: int, column: str) -> list[float]:
    return [
        each[column] for each in live["lateness"] if (each["system"], each["what"], each["rate"]) == (name, what, rate)
    ]


def shown(found: Figure, digits: int = 1) -> str:
    """Return the median, or only the interquartile range if the figure is too noisy."""
    if found.too_noisy:
        return f"noisy, {found.low:,.{digits}f}–{found.high:,.{digits}f}"
    return f"{found.median:,.{digits}f}"


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    first, *others = (f"| {' | '.join(line)} |" for line in [heads, *rows])
    rule = f"|---{'|---:' * (len(heads) - 1)}|"
    return "\n" + "\n".join([first, rule, *others]) + "\n"


def conditions() -> str:
    """Return a table of each results file's date, commit, machine and load. A sentence states what all files share."""
    heads = ["file", "measured", "machine", "versions", "load, 1 / 15 min", "nice"]
    rows = []
    for path in sorted(RESULTS.glob("*.json")):
        found = results(path.stem)
        machine, load = found["machine"], found["load"]
        versions = ", ".join(f"{each} {machine[each.lower()]}" for each in ("Valkey", "Python", "redis-py"))
        measured, nice = f"{found['date']}, {found['commit']}", str(found.get("nice", 0))
        rows.append([path.stem, measured, machine["processor"], versions, f"{load[0]} / {load[2]}", nice])
    columns = list(zip(heads, *rows, strict=True))
    shared = [(head, cells[0]) for head, *cells in columns if len(set(cells)) == 1]
    differing = list(zip(*[column for column in columns if len(set(column[1:])) > 1], strict=True))
    sentence = "; ".join(f"{head} {cell}" for head, cell in shared)
    return f"{_table(differing[0], differing[1:])}\nAll: {sentence}.\n" if shared else _table(heads, rows)


def targets(*names: str) -> str:
    rows = [
        [
            each["what"].replace(", of ", ", share of "),
            f"{each['at_most']:g}",
            shown(_figure(each["found"]), 2),
            each["verdict"].lower(),
        ]
        for name in names
        for each in results(name)["targets"]
    ]
    return _table(["target", "at most", "measured", "verdict"], rows)


def shares() -> str:
    """Return a table of ingest's targets: its cost as a share of a rival's, by message size and number of clients."""
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for each in results("ingest")["targets"]:
        found = re.fullmatch(r"(.+) of (\d+) B, of (.+), (\d+) clients", each["what"])
        assert found, each["what"]
        what, size, other, clients = found.groups()
        row = cells.setdefault((f"{what}, share of {other}", f"{each['at_most']:g}"), {})
        row[f"{size} B, {clients} clients"] = f"{shown(_figure(each['found']), 2)} {each['verdict'].lower()}"
    columns = list(next(iter(cells.values())))
    rows = [[*head, *(row[column] for column in columns)] for head, row in cells.items()]
    return _table(["target", "at most", *columns], rows)


def ingest() -> str:
    found = results("ingest")["contestants"]
    at = {(each["contestant"], each["clients"], each["bytes"]): each for each in found}
    clients, waiting = sorted({each["clients"] for each in found}), results("ingest")["bytes_waiting"]
    rows = [
        [
            NAMES[name],
            f"{at[name, clients[0], 200]['commands']:g}",
            *(shown(_figure(at[name, number, 200]["server_cpu_us"])) for number in clients),
            shown(_figure(at[name, CLIENTS, 4_096]["server_cpu_us"])),
            *(f"{waiting[size][name]:,}" if name in waiting[size] else "–" for size in waiting),
            *(shown(_figure(at[name, number, 200]["adds_per_second"]), 0) for number in clients),
        ]
        for name in CONTESTANTS
    ]
    kept = [f"bytes waiting, {size} B" for size in waiting]
    cpu, adds = [f"CPU µs, {number}" for number in clients], [f"adds/s, {number}" for number in clients]
    heads = ["clients →", "commands", *cpu, f"CPU µs, 4 KB, {CLIENTS}", *kept, *adds]
    own = results("ingest")["own_clients"]
    said = "; ".join(
        f"{name} under way: {shown(_figure(each['adds_per_second']), 0)} a second, "
        f"{shown(_figure(each['client_cpu_us']), 0)} µs of the client's CPU"
        for name, each in own.items()
    )
    return f"{_table(heads, rows)}\nOne process of each system's own client adds: {said}.\n"


def lateness() -> str:
    live = results("live")
    rates = sorted({each["rate"] for each in live["lateness"]})

    def cell(name: str, what: str, rate: int) -> str:
        p50, p99, most = (_of(live, name, what, rate=rate, column=column) for column in ("p50", "p99", "max"))
        return f"{shown(figure(p50))} / {shown(figure(p99))} / {max(most):,.0f}"

    rows = [
        [f"{NAMES[name].partition(',')[0]}, {what}", *(cell(name, what, rate) for rate in rates)]
        for what in ("timed", "immediate")
        for name in ("ours", "bullmq", "naive", "timer")
        if _of(live, name, what, rate=RATE, column="p50")
    ]
    heads = ["p50 / p99 / max, ms", *(f"{rate:,} a second" for rate in rates)]
    return _table(heads, rows)


def systems() -> str:
    live = results("live")
    rows = []
    for name, found in live["correctness"].items():
        idle, recovery = live["idle"][name], live["recovery"].get(name)
        back = f"{recovery['resumed_after_s']:g} s / {recovery['latest_s']:g} s" if recovery else "–"
        if name == "ours":
            back = "see below"
        rows.append([
            NAMES[name], *(f"{found[each]:,}" for each in ("messages", "lost", "sent_twice", "merged", "split")),
            f"{idle['waiting_per_second']:g}", back,
        ])  # fmt: skip
    heads = ["", "messages", "lost", "twice", "merged", "split", "idle commands/s", "after kill -9"]
    return _table(heads, rows)


def crashes() -> str:
    """Return a table of how late batches are after each kill, with the verdicts on the targets."""
    found = results("crashes")["rounds"]
    by_name = {each["what"]: each for each in results("crashes")["targets"]}
    columns = {
        column: [by_name[f"{column} batch after kill -9 of {name}, s"] for name in found] for column in ("next", "last")
    }

    def cell(name: str, column: str, verdict: str) -> str:
        seconds = [each[f"{column}_s"] for each in found[name]]
        return f"{median(seconds):.1f} / {max(seconds):.1f} {verdict.lower()}"

    heads = []
    for column, judged in columns.items():
        (at_most,) = {each["at_most"] for each in judged}
        heads.append(f"{column}, at most {at_most:g}")
    rows = [
        [name, *(cell(name, column, judged[row]["verdict"]) for column, judged in columns.items())]
        for row, name in enumerate(found)
    ]
    lost = by_name["lost after kill -9"]
    return (
        f"{_table(['killed', *heads], rows)}\n"
        f"Messages lost, at most 0: {_figure(lost['found']).median:g} {lost['verdict'].lower()}.\n"
    )


def handler() -> str:
    found = results("handler")
    rows = []
    for platform, each in found["platforms"].items():
        parts = [part for part in each["profile"] if part["part"] != "store"][:3]
        top = ", ".join(f"{part['part']} {part['share']:.0%}" for part in parts)
        rows.append([platform, shown(_figure(each["cpu_ms"]), 3), shown(_figure(each["redis_py_ms"]), 3), top])
    return _table(["a message of", "CPU, ms", "redis-py's, ms", "most of it"], rows)


def cold() -> str:
    found = results("cold")
    rows = [[part, shown(figure(each), 0)] for part, each in cold_parts(found["ways"]).items()]
    cpu = ", ".join(f"{step} {shown(_figure(each), 0)} ms" for step, each in found["ingest_cpu_ms"]["here"].items())
    late = {name: figure([each["late_ms"][name] for each in found["ways"]]) for name in ("cold", "warm")}
    late_text = ", ".join(f"{name} {shown(each, 0)}" for name, each in late.items())
    table = _table(["part of the way", "ms"], rows)
    return f"{table}\nCPU of ingest's cold start: {cpu}. From due to event, ms: {late_text}.\n"


def cold_parts(ways: list[Any]) -> dict[str, list[float]]:
    """Return how many ms each step from a message to its event took: a list with one number for each round."""
    ends = {
        "ingest: start, connections, message buffered, processor started": "processor started",
        "processor: start": "processor began",
        "conversation processor: start, connections": "warmed up",
        "rest of the wait": "due",
        "claim": "claimed",
        "take, emit": "event",
    }
    parts: dict[str, list[float]] = {}
    for each in ways:
        before = 0.0
        for part, end in ends.items():
            # The line of a step may be logged only after the event. Then the step ends with the event.
            at = min(each["cold"].get(end, each["cold"]["event"]), each["cold"]["event"])
            parts.setdefault(part, []).append(at - before)
            before = at
    return parts


def stage() -> str:
    found = results("stage")
    steps = {name: {each["clients"]: each for each in runs} for name, runs in found["steps"].items()}

    def cell(step: Any) -> str:
        if step is None:
            return "–"
        errors = f", {step['errors']:.1%}" if step["errors"] else ""
        return f"{step['per_second']:,.0f} / {step['p50_ms']:,.0f} / {step['p99_ms']:,.0f}{errors}"

    clients = sorted({number for each in steps.values() for number in each})
    rows = [[str(number), *(cell(each.get(number)) for each in steps.values())] for number in clients]
    heads = ["clients", *("the whole way" if name == "product" else "a function that does nothing" for name in steps)]
    return _table(heads, rows)


def outage() -> str:
    found = results("outage")

    def cell(name: str, column: str) -> str:
        return shown(figure([each[name][column] for each in found["rounds"]]))

    heads = ["", "p50, ms", "p99, ms", "slowest, ms", "refused"]
    rows = [
        [said, *(cell(name, column) for column in ("p50_ms", "p99_ms", "most_ms")),
         f"{max(each[name]['errors'] for each in found['rounds']):.1%}"]
        for name, said in (("healthy", "Valkey healthy"), ("silent", "Valkey silent"))
    ]  # fmt: skip
    slower = shown(_figure(found["slower"]))
    return f"{_table(heads, rows)}\nThe median while silent, as a multiple of the healthy one: {slower}.\n"


def model() -> str:
    found = results("model")
    quotas = found["quotas"]
    rows = [
        [
            f"{each['messages_per_day']:,}", str(each["shards"]), f"${each['dollars_a_month']:,.0f}",
            ", ".join(f"{quotas[name]['name']} {part:.1%}" for name, part in _most(each["share_of_quota"], 2)),
        ]
        for each in found["rows"]
    ]  # fmt: skip
    reached = "\n".join(
        f"| {quotas[name]['name']} | {quotas[name]['value']:,.0f} | {volume:,} |"
        for name, volume in sorted(found["reached_at"].items(), key=lambda item: item[1])
    )
    table = _table(["messages a day", "shards", "a month", "nearest to their quotas in the busiest second"], rows)
    return f"{table}\n| limit | quota | reached at, messages a day |\n|---|---:|---:|\n{reached}\n"


def pollers() -> str:
    rows = results("pollers")["rows"]
    ways = [name for name in rows[0] if name != "windows"]
    heads = ["windows due at once", *(f"{name.removesuffix(' at once')} a run: half, last" for name in ways)]
    cells = [
        [
            f"{row['windows']:,}",
            *(f"{row[way]['median_ms'] / 1_000:.1f} s, {row[way]['last_ms'] / 1_000:.1f} s" for way in ways),
        ]
        for row in rows
    ]
    return _table(heads, cells)


def _most(shares: dict[str, float], count: int) -> list[tuple[str, float]]:
    return sorted(shares.items(), key=lambda item: -item[1])[:count]


def summary() -> str:
    cpu = {name: found.median for name, found in _cpu(results("ingest")).items()}
    live = results("live")
    p99 = {name: median(_of(live, name, "timed", rate=RATE, column="p99")) for name in ("ours", "bullmq", "naive")}
    checked = live["correctness"]["ours"]
    wrong = checked["lost"] + checked["sent_twice"] + checked["merged"]
    of_one, of_all = cpu["ours"] / cpu["bullmq"], cpu["ours"] / cpu["bullmq keep-all"]
    return f"""
- A message costs one round trip to Valkey, and {cpu["ours"]:.0f} µs of the server's CPU: {of_one:.0%} of what BullMQ's
  debounce mode takes, which keeps only the last message, and {of_all:.0%} of what it takes to keep them all
  ({CLIENTS} clients, 200 bytes).
- At {RATE:,} due batches a second, ours begins to handle 99 % of them within {p99["ours"]:.1f} ms, BullMQ
  within {p99["bullmq"]:.0f}, a poll within {p99["naive"]:.0f}.
- Of {checked["messages"]:,} messages with repeats and pauses, {wrong or "none"} were lost, doubled or merged.
"""


def engine() -> str:
    found = {(each["contestant"], each["kind"]): each for each in results("engine")["hot_path"]}
    rows = [
        [
            f"{NAMES[name]}, {kind}", shown(_figure(each["cpu_us"])), shown(_figure(each["script_us"])),
            f"{each['redis_calls']:g}",
        ]
        for (name, kind), each in sorted(found.items())
        if name in ("ours", "naive", "bare")
    ]  # fmt: skip
    table = _table(["", "server CPU, µs", "script, µs", "commands in the script"], rows)
    return f"{targets('engine')}{table}"


def growth() -> str:
    found = results("growth")
    rows = [
        [
            f"{what}, µs of the script",
            *(shown(_figure(each)) for each in found["script_us"][what]),
            shown(_figure(found["growth"][what]), 2),
        ]
        for what in found["script_us"]
    ]
    rows += [
        [f"bytes of a conversation, {NAMES[name]}", *(f"{each:,}" for each in sizes), ""]
        for name, sizes in found["bytes_each"].items()
    ]
    heads = ["conversations waiting →", *(f"{size:,}" for size in found["conversations"]), "growth"]
    return _table(heads, rows)


def editors() -> str:
    found = results("editors")
    neighbours = [
        [kind, *(shown(_figure(each[name]), 2) for name in ("p50", "p99"))]
        for kind, each in found["neighbours"].items()
    ]
    scripts = sorted(found["longest_call_ms"].items(), key=lambda item: -_figure(item[1]).median)
    longest = ", ".join(f"{name} {shown(_figure(each), 2)}" for name, each in scripts if _figure(each).median >= 0.1)
    table = _table(["another tenant's message beside ten", "p50, ms", "p99, ms"], neighbours)
    return f"{table}\nThe longest call of each script, in ms: {longest}; all others below 0.1.\n"


def due_to_event() -> str:
    found = results("lateness")
    rows = [
        [
            f"{each['batches_per_second']:g} ({each['due_to_event']['count']} batches, {each['lost']} lost)",
            *(f"{each[part]['p50']:g} / {each[part]['p99']:g}" for part in ("due_to_event", "bare_invoke",
                                                                             "bare_put_events")),
        ]
        for each in found["rounds"]
    ]  # fmt: skip
    heads = ["batches a second", "due to event, p50 / p99, ms", "bare invocation", "bare PutEvents"]
    return _table(heads, rows)


def due_to_event_dynamodb() -> str:
    found = results("lateness_dynamodb")
    parts = {
        "due_to_event": "due to event, p50 / p99, ms",
        "second_to_event": "whole second to event",
        "bare_delivery": "bare delivery",
        "bare_request": "bare request",
    }
    rows = [
        [
            f"{each['batches_per_second']:g} ({each['achieved_per_second']:g} reached, {each['lost']} lost)",
            *(f"{each[part]['p50']:,.0f} / {each[part]['p99']:,.0f}" for part in parts),
            " / ".join(f"{ms:,.0f}" for ms in each["cpu_ms"].values()),
        ]
        for each in found["rounds"]
    ]
    heads = ["batches a second", *parts.values(), "CPU of a batch, ms: emulator / ingest / processor"]
    return _table(heads, rows)


TABLES: dict[str, Callable[[], str]] = {
    "summary": summary,
    "conditions": conditions,
    "shares": shares,
    "cold": cold,
    "targets": lambda: targets(
        "live", "handler", "cold", "outage", "growth", "editors", "fairness", "lateness_dynamodb"
    ),
    "engine": engine,
    "growth": growth,
    "editors": editors,
    "due_to_event": due_to_event,
    "due_to_event_dynamodb": due_to_event_dynamodb,
    "ingest": ingest,
    "lateness": lateness,
    "systems": systems,
    "handler": handler,
    "stage": stage,
    "outage": outage,
    "crashes": crashes,
    "model": model,
    "pollers": pollers,
}

if __name__ == "__main__":
    write(ROOT)
