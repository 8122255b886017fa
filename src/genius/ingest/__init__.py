"""Adding items: read, checked, encoded, quantized and committed in batches."""
