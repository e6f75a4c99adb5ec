"""The commands, one module for each group.

A command returns its result, or a tuple of the result and the texts that show it to people. `--json` prints the result.
"""
