"""The operators' command line, `.venv/bin/python -m bufferctl`, which calls the admin function of a stage."""
