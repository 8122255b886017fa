"""Systems that the bench sets beside ours, one file each."""
