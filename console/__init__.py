"""The console: a page on this machine that shows a stage, and on which one can write to it as a customer."""
