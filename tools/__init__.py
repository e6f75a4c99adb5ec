"""Programs for developers: the local stage, the console, the benchmarks, the numbers. No other package imports them."""
