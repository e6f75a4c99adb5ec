"""Runs a Lambda function in a process of its own, which a test can kill.

Usage: python run_handler.py <module>; each line of the input is an event, each line of the output a response.
"""

import importlib
import json
import sys

if __name__ == "__main__":
    handler = importlib.import_module(sys.argv[1]).handler
    responses, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        print(json.dumps(handler(json.loads(line), None)), file=responses, flush=True)
