"""The trie of a pool's codes.

trie.py          the trie as flat NumPy arrays        packing.py  how an item's record is packed into bytes
sorting.py       builds the arrays in bounded memory  tensors.py  the same trie in torch, for batches
child_tables.py  the best children of many prefixes without listing them all
"""

from genius.search.arrays import Bools, Ints
from genius.search.trie.trie import Children, ItemFilter, Nodes, Trie

__all__ = ["Bools", "Children", "Ints", "ItemFilter", "Nodes", "Trie"]
