"""The benchmark's builder: one module for each dataset, and what they share. See ../README.md."""
