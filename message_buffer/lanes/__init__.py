"""The two ways from message to batch, their outcomes, and the fallback between them. Imports rules and all below."""
