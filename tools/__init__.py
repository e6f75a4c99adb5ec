"""Programs for developers: the local stage, the console, the benchmarks, docs/numbers.md. The product imports none."""
