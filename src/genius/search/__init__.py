"""Search over stored codes: trie, beams, leaves, re-ranking.

trie.py     the pool's codes as flat arrays          packing.py  how a record is packed into bytes
lookup.py   a beam by tables, in NumPy               tensors.py  tries in torch, several as one
beam.py     a beam by the decoder, in torch          leaves.py   what a beam finds
rerank.py   better scores for what was found         found.py    ranked answers, merged
run.py      one front for all of it                  methods.py  lookup, generate, both
"""
