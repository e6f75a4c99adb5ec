"""Programs for developers: the local stage, the console, the benchmarks and the numbers. No other package imports them."""
