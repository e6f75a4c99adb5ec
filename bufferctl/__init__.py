"""The operators' command line, `.venv/bin/python -m bufferctl`: it asks the admin function of a stage."""
