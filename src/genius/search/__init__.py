"""Search over stored codes: trie, beams, leaves, re-ranking."""
