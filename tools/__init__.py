"""Programs for developers: the local stage, the console and the benchmarks. No other package imports them."""
