"""Computes what a month of the canary costs: its own runs, and the work that they cause in the stage."""

from bufferctl.cost.facts import MILLION, SECONDS, used
from bufferctl.cost.lines import Line
from infra.settings_and_defaults import StageConfig
from message_buffer.limits import CANARY_FRAGMENTS, CANARY_RUN_MS, SECOND_MS

PART = "canary"
RUNS = SECONDS * SECOND_MS / CANARY_RUN_MS


def of_canary(config: StageConfig) -> list[Line]:
    """Return the cost of the canary, line by line. Its runs are far apart, so each run starts a processor."""
    webhooks = RUNS * CANARY_FRAGMENTS
    run_seconds = used("canary_run_ms") / 1_000
    gb = config.memory["canary"] / 1_024
    lines = [
        Line(PART, "Lambda: canary, duration", "lambda_arm", RUNS * run_seconds * gb, "runs x billed time"),
        Line(PART, "Canary: requests of Lambda", "lambda_requests", (RUNS + webhooks) / MILLION, "runs + webhooks"),
        Line(PART, "Canary: polls", "sqs_requests", RUNS * run_seconds / MILLION, "runs x seconds"),
        Line(PART, "Canary: metrics", "metric", used("metrics_of_canary"), "metrics that its runs cause"),
        Line(PART, "Canary: alarms", "alarm", used("alarm_metrics_of_canary"), "metrics that alarms read"),
    ]
    if config.api.kind != "url":
        lines.append(Line(PART, "Canary: webhooks", f"api_{config.api.kind}", webhooks / MILLION, "runs x fragments"))
    if config.has_valkey_lane:
        kept = run_seconds + (used("cold_start_ms") + config.timings.processor_idle_ms) / 1_000
        processor = RUNS * kept * config.memory["processor"] / 1_024
        formula = "runs x (billed time of a run + cold start + idle time)"
        lines.append(Line(PART, "Canary: processors", "lambda_arm", processor, formula))
    return lines
