"""`python -m genius`; with torchrun: `torchrun --nproc-per-node 4 -m genius train …`."""

from genius.cli import main

if __name__ == "__main__":
    main()
