"""Write the measured tables into the documents, from tools/bench/results: `python -m tools.bench.document`.

Each table replaces the text between `<!-- bench: name -->` and `<!-- end -->`. The other text is written by hand.
"""

import json
import re
from pathlib import Path
from typing import Any

from tools.bench.chart import Bar, Panel, svg
from tools.bench.ingest import NAMES
from tools.bench.measure import Figure
from tools.bench.report import RESULTS, markdown

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("docs/performance.md", "docs/lanes.md", "tools/bench/README.md", "README.md")
PICTURE = "docs/performance.svg"


def results() -> dict[str, Any]:
    """Return what each benchmark found, by the benchmark's name."""
    return {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(RESULTS.glob("*.json"))}


def write(root: Path) -> None:
    found = results()
    texts = {name: markdown(table) for each in found.values() for name, table in each["tables"].items()}
    targets = [row for each in found.values() for row in each["targets"]]
    texts["targets"] = markdown([["target", "at most", "measured", "verdict"], *targets])
    measured = [[name, each["measured"], each["load"]] for name, each in found.items()]
    machines = "; or ".join(sorted({each["machine"] for each in found.values()}))
    texts["conditions"] = f"{markdown([['file', 'measured', 'load'], *measured])}\n\nOn {machines}."
    texts["summary"] = _summary(found)

    def fill(marked: re.Match[str]) -> str:
        return f"{marked[1]}\n\n{texts[marked[2]]}\n\n{marked[3]}"

    for name in DOCUMENTS:
        text = (root / name).read_text("utf-8")
        filled = re.sub(r"(<!-- bench: (\w+) -->).*?(<!-- end -->)", fill, text, flags=re.DOTALL)
        (root / name).write_text(filled, "utf-8")
    (root / PICTURE).write_text(_picture(found), "utf-8")


def _figures(found: dict[str, Any], name: str) -> dict[str, Figure]:
    return {what: Figure(*values) for what, values in found[name]["figures"].items()}


def _picture(found: dict[str, Any]) -> str:
    cpu, late = _figures(found, "ingest"), _figures(found, "live")
    names = [f"{name}, {what}" for what in ("timed", "immediate") for name in ("ours", "bullmq", "naive")]
    return svg([
        Panel("Server CPU of a message, µs (16 clients, 200 bytes)",
              [Bar(said, cpu[name]) for name, said in NAMES.items()], is_log=False),
        Panel("Lateness, p99 in ms (1,000 batches due a second)",
              [Bar(name.replace("bullmq", "BullMQ"), late[name]) for name in names], is_log=True),
    ])  # fmt: skip


def _summary(found: dict[str, Any]) -> str:
    cpu, live = _figures(found, "ingest"), _figures(found, "live")
    ours, messages = cpu["ours"].median, live["messages"].median
    of_one, of_all = (ours / cpu[name].median for name in ("bullmq", "bullmq keep-all"))
    late = {name: live[f"{name}, timed"].median for name in ("ours", "bullmq", "naive")}
    (wrong,) = (measured for what, _, measured, _ in found["live"]["targets"] if what.startswith("messages lost"))
    lost = wrong if float(wrong) else "none"
    return f"""- A message costs one round trip to Valkey, and {ours:.0f} µs of the server's CPU: {of_one:.0%} of what
  BullMQ's debounce mode takes, which keeps only the last message, and {of_all:.0%} of what it takes to keep them
  all (16 clients, 200 bytes).
- At 1,000 due batches a second, ours begins to handle 99 % of them within {late["ours"]:.1f} ms, BullMQ within
  {late["bullmq"]:.0f}, a poll within {late["naive"]:.0f}.
- Of {messages:,.0f} messages with repeats and pauses, {lost} were lost, doubled or merged."""


if __name__ == "__main__":
    write(ROOT)
