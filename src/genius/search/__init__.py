"""Search over stored codes: trie, beams, leaves, re-ranking.

trie.py     the pool's codes as flat arrays          packing.py  how a record is packed into bytes
sorting.py  the arrays of a trie, in bounded passes  fan.py      the best of large families, unseen the rest
lookup.py   a beam by tables, in NumPy               tensors.py  tries in torch, several as one
beam.py     a beam by the decoder, in torch          leaves.py   what a beam finds
fixed.py    both as programs of fixed shape          shelf.py    the trie they read
replay.py   those, recorded once for a GPU           found.py    ranked answers, merged
rerank.py   better scores for what was found         methods.py  lookup, generate, both
run.py      one front for all of it                  segment.py  a trie and who is visible in it
"""
