"""Compute what a stage costs a month: `.venv/bin/python -m bufferctl.cost --stage prod --messages-per-day 100000`.

This package may import the settings of `infra` and the numbers of `message_buffer`. Nothing here imports the CDK, whose
import takes seconds.
"""
