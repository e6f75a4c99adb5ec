"""The benchmarks. They may import every other package of this repository."""
