"""Compute what a stage costs a month: `.venv/bin/python -m cost --stage prod --messages-per-day 100000`.

Nothing here imports the CDK, whose import takes seconds.
"""
