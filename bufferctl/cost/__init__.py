"""Compute what a stage costs a month: prices × amounts.

This package may import the settings of `infra` and the numbers of `message_buffer`. Nothing here imports the CDK, whose
import takes seconds.
"""
