"""The local stage: a real Valkey, an AWS emulator, and our stacks deployed onto it.

This package may import `infra` and `bufferctl`. It reaches the functions only through AWS's APIs.
"""
