"""Makes the dashboard of a stack from the table of symptoms."""

from collections.abc import Sequence

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from constructs import Construct

from .metrics import Metrics
from .symptoms import GRAPHS, SYMPTOMS, Metric, Source

WIDTH, HEIGHT = 24, 6


def draw_dashboard(
    scope: Construct, name: str, metrics: Metrics, alarms: Sequence[cloudwatch.Alarm]
) -> cloudwatch.Dashboard:
    """Create the dashboard `message-buffer-<name>`: its alarms, a graph of each symptom, and what the stack does."""
    symptoms = [
        _graph(metrics, each.name, each.metrics, limit=each.limit(metrics.config))
        for each in SYMPTOMS
        if each.can_occur(metrics.config)
    ]
    graphs = [_graph(metrics, each.title, each.metrics, unit=each.unit) for each in GRAPHS]
    return cloudwatch.Dashboard(
        scope,
        "Dashboard",
        dashboard_name=f"message-buffer-{name}",
        default_interval=cdk.Duration.hours(3),
        widgets=[
            [cloudwatch.AlarmStatusWidget(title="Alarms", alarms=list(alarms), width=WIDTH, height=4)],
            [_heading("Symptoms")],
            [graph for graph in symptoms if graph],
            [_heading("What the stage does")],
            [graph for graph in graphs if graph],
        ],
    )


def _heading(title: str) -> cloudwatch.TextWidget:
    transparent = cloudwatch.TextWidgetBackground.TRANSPARENT
    return cloudwatch.TextWidget(markdown=f"## {title}", width=WIDTH, height=1, background=transparent)


def _graph(
    metrics: Metrics, title: str, shown: Sequence[Metric], *, unit: str = "", limit: float = 0
) -> cloudwatch.GraphWidget | None:
    """Return a graph, or None if the stack publishes none of these metrics. `limit` is drawn as a red line."""
    lines = [line for metric in shown if metrics.has(metric) for line in metrics.lines(metric)]
    if not lines:
        return None
    # The graph of the API shows numbers of requests, and its limit is a percentage.
    has_limit = bool(limit) and not any(metric.source is Source.API for metric in shown)
    red = [cloudwatch.HorizontalAnnotation(value=limit, label="alarm", color=cloudwatch.Color.RED)] if has_limit else []
    return cloudwatch.GraphWidget(
        title=title,
        left=lines,
        left_y_axis=cloudwatch.YAxisProps(label=unit or None, show_units=False, min=0),
        left_annotations=red,
        width=WIDTH // 4,
        height=HEIGHT,
    )
