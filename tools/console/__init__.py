"""The console: a page on this machine that shows a stage and lets its reader write to the stage as a customer.

This package may import `bufferctl`, `tools.local` and `lambdas.canary`.
"""
