"""Makes the alarms of a stack from the table of symptoms."""

from aws_cdk import aws_cloudwatch as cloudwatch
from constructs import Construct

from .metrics import Metrics
from .symptoms import SYMPTOMS, Metric, Source, Symptom, without_links


def raise_alarms(scope: Construct, metrics: Metrics, action: cloudwatch.IAlarmAction) -> list[cloudwatch.Alarm]:
    """Create and return an alarm for each metric of each symptom that wakes somebody.

    Each alarm notifies `action` when it fires and when it is over.
    """
    waking = [each for each in SYMPTOMS if each.wakes != "nobody" and each.can_occur(metrics.config)]
    alarms = [
        _alarm(scope, metrics, symptom, metric)
        for symptom in waking
        for metric in (single for each in symptom.metrics for single in metrics.single(each))
    ]
    for alarm in alarms:
        alarm.add_alarm_action(action)
        alarm.add_ok_action(action)
    return alarms


def _alarm(scope: Construct, metrics: Metrics, symptom: Symptom, metric: Metric) -> cloudwatch.Alarm:
    role = metric.of if len(symptom.metrics) > 1 else ""
    if symptom.metrics[0].of.endswith("*"):
        role = metric.of.rpartition(" ")[2]  # the queue's name
    if metric.source is Source.LAMBDA and len(metrics.functions) == 1:
        (role,) = metrics.functions  # the buffer's stack has an alarm without a role
    name = f"{symptom.anchor}-{role.replace('_', '-')}".rstrip("-")
    compare = cloudwatch.ComparisonOperator
    return cloudwatch.Alarm(
        scope,
        "".join(word.capitalize() for word in name.split("-")),
        # The name becomes the subject of the mail.
        alarm_name=f"message-buffer-{metrics.config.name}-{name}",
        # A subscriber can filter by what the description begins with.
        alarm_description=f"[{symptom.wakes}] {without_links(symptom.means)} Runbook: {symptom.runbook}",
        metric=metrics.value(metric, minutes=symptom.minutes, or_zero=symptom.below is not None),
        threshold=symptom.limit(metrics.config) if symptom.below is None else symptom.below,
        comparison_operator=compare.GREATER_THAN_THRESHOLD if symptom.below is None else compare.LESS_THAN_THRESHOLD,
        evaluation_periods=symptom.out_of or symptom.periods,
        datapoints_to_alarm=symptom.periods,
        treat_missing_data=cloudwatch.TreatMissingData.IGNORE
        if symptom.keeps_state
        else cloudwatch.TreatMissingData.NOT_BREACHING,
    )
