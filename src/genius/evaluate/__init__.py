"""The bench: metrics, protocol, tables and the systems compared."""
