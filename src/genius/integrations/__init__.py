"""genius inside other libraries, one file each; importing genius imports none of them."""
