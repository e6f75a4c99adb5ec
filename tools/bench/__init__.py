"""The benchmarks. Each module is a program, and may import every other package."""
