"""Names of fashion products: the colour in a name, and the article in the singular."""

from __future__ import annotations

COLOURS = frozenset(
    (
        "black", "white", "blue", "navy", "grey", "gray", "red", "brown", "green", "pink", "purple",
        "yellow", "silver", "beige", "orange", "maroon", "olive", "cream", "gold", "golden", "charcoal",
        "peach", "lavender", "teal", "magenta", "mustard", "khaki", "tan", "turquoise", "ivory", "rust",
        "bronze", "copper", "burgundy", "indigo", "violet", "lilac", "mauve", "fuchsia", "coral", "cyan",
        "aqua",
    )
)  # fmt: skip
SHADES = frozenset(
    (
        "light", "dark", "off", "sky", "royal", "deep", "bright", "baby", "hot", "neon", "sea", "bottle",
    )
)  # fmt: skip
SYNONYMS = {"gray": "grey", "golden": "gold"}
PLURALS = frozenset(
    (
        "shoes", "heels", "sandals", "flops", "flats", "jeans", "shorts", "trousers", "sunglasses",
        "socks", "pants", "leggings", "capris", "earrings", "cufflinks", "tights", "gloves", "booties",
        "jeggings", "suspenders", "wristbands", "rompers",
    )
)  # said of one article, too  # fmt: skip
SINGULARS = {
    "tshirts": "t-shirt", "watches": "watch", "dresses": "dress", "clutches": "clutch", "scarves": "scarf",
    "chains": "chain", "accessories": "accessory",
}  # fmt: skip


def split_colour(name: str) -> tuple[str, str] | None:
    """`Nike Men Navy Blue Shorts` as (`nike men * shorts`, `navy blue`).

    None unless the name has exactly one run of colour words and three other words. The first word is the
    brand and never a colour; Speak Black is a brand, too.
    """
    words = [word.lower().strip(",") for word in name.split(" ")]
    places = [n for n in range(1, len(words)) if words[n] in COLOURS and words[n - 1] != "speak"]
    if not places:
        return None
    first, last = places[0], places[-1]
    if any(word not in COLOURS | SHADES | {"&", "and"} for word in words[first : last + 1]):
        return None
    while first > 1 and words[first - 1] in SHADES:
        first -= 1
    if words[last + 1 : last + 2] == ["melange"]:
        last += 1
    before, after = words[:first], words[last + 1 :]
    if len(before) + len(after) < 3:
        return None
    run = [SYNONYMS.get(word, word).replace("&", "and") for word in words[first : last + 1]]
    colour = " ".join(word for n, word in enumerate(run) if n == 0 or word != run[n - 1])
    return " ".join([*before, "*", *after]), colour


def colour_key(colour: str) -> str:
    """Equal for colours that are the same but for order and `navy`: `navy blue`, `blue`, `navy`."""
    words = sorted(set(colour.split()) - {"and"})
    if words == ["navy"]:
        return "blue"
    return " ".join(word for word in words if not (word == "navy" and "blue" in words))


def article(kind: str) -> str:
    """`Tshirts` as `t-shirt`, `Casual Shoes` as `casual shoes`."""
    *front, last = kind.lower().split()
    if last in SINGULARS:
        last = SINGULARS[last]
    elif last not in PLURALS and last.endswith("s") and not last.endswith("ss"):
        last = last[:-1]
    return " ".join([*front, last])
