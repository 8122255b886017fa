"""Readers: folders, tables and benchmarks to items and queries."""
