"""Commands of one page after the other without importing torch for each: they are forks of one process.

python preloaded.py SOCKET                           the process; it ends with its standard input
python preloaded.py SOCKET genius search ...         runs `genius search ...` there, as if here
python preloaded.py SOCKET python -                  runs the program on standard input
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import socket
import sys
from pathlib import Path


def serve(place: str) -> None:
    for name in (
        "genius.cli.index",
        "genius.cli.search",
        "genius.engine",
        "genius.encode.mini.encoder",
        "genius.quantize.model",
        "genius.search.searcher",
        "torch._dynamo",  # by every optimiser
        "transformers.models.siglip.modeling_siglip",
    ):
        importlib.import_module(name)  # imports only: threads would not survive a fork
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(place)
        door.listen(16)
        print("ready", flush=True)
        while True:
            asked, _, _ = select.select([door, sys.stdin], [], [])
            if sys.stdin in asked:
                return
            line, _ = door.accept()
            if os.fork() == 0:
                door.close()
                carry_out(line)
            line.close()


def carry_out(line: socket.socket) -> None:
    """Be the command that the other side is; what it ends with is sent there."""
    request, handles, _, _ = socket.recv_fds(line, 1 << 20, 3)
    words, folder, environment = json.loads(request)
    for number, handle in enumerate(handles):
        os.dup2(handle, number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    code = 0
    try:
        if words[0] == "genius":
            sys.argv = words
            sys.modules["genius.cli"].main()
        else:
            exec(compile(sys.stdin.read(), "<stdin>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    sys.stdout.flush()
    line.sendall(bytes([code]))
    os._exit(code)


def ask(place: str, words: list[str]) -> int:
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(place)
        request = json.dumps([words, str(Path.cwd()), dict(os.environ)]).encode()
        socket.send_fds(line, [request], [0, 1, 2])
        answer = line.recv(1)
    return answer[0] if answer else 1


if __name__ == "__main__":
    if len(sys.argv) == 2:
        serve(sys.argv[1])
    else:
        sys.exit(ask(sys.argv[1], sys.argv[2:]))
