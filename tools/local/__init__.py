"""The local stage: a real Valkey, an AWS emulator, and our stacks deployed onto it."""
