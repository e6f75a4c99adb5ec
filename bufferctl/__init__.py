"""What operators type: `python -m bufferctl`. It knows a stage by its outputs, and asks the stage's admin function."""
