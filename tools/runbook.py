"""Writes the section Symptoms of docs/runbook.md from infra/symptoms.py: `.venv/bin/python -m tools.runbook`."""

import textwrap
from pathlib import Path

from infra.symptoms import SYMPTOMS, Symptom

PAGE = Path(__file__).parents[1] / "docs" / "runbook.md"
HEAD, NEXT = "## Symptoms\n", "\n## Handling dead letters\n"
WIDTH = 125
WAKES = {"page": "Pages", "ticket": "Ticket", "nobody": "No alarm"}


def page(text: str) -> str:
    """Return the runbook with its symptoms written again, but with the section's introduction kept."""
    before, _, after = text.partition(HEAD)
    own, _, rest = after.partition(NEXT)
    words = own.partition("\n### ")[0].strip()
    return "\n".join([f"{before}{HEAD}", words, "", *map(_paragraph, SYMPTOMS)]) + NEXT + rest


def _paragraph(symptom: Symptom) -> str:
    named = (f"`{metric.name}`" for metric in dict.fromkeys(each._replace(of="") for each in symptom.metrics))
    measured = f"*{WAKES[symptom.wakes]}; {', '.join(named)}.* {symptom.means}"
    return f"### {symptom.name}\n\n{_fill(measured)}\n\n{_fill(f'**Do.** {symptom.do}')}\n"


def _fill(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
