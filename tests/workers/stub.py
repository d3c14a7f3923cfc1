"""Stands in for a worker: serves pages on the descriptor that it is given, or does what a test asks."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

number, descriptor, folder = sys.argv[1:]
secret = os.read(0, 32)
(Path(folder) / f"secret-{number}").write_bytes(secret)
(Path(folder) / f"pid-{number}").write_text(str(os.getpid()))
asked = Path(folder) / f"do-{number}"
wanted = asked.read_text() if asked.exists() else ""
if wanted.startswith("exit"):
    sys.exit(int(wanted.split()[1]))
PAGE = f"# HELP t_calls Calls.\n# TYPE t_calls counter\nt_calls {number}\n".encode()


class Pages(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(PAGE)))
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *_: object) -> None:
        pass


def drain(*_: object) -> None:
    if wanted != "stay":
        (Path(folder) / f"drained-{number}").touch()
        os._exit(0)


signal.signal(signal.SIGTERM, drain)
signal.signal(signal.SIGHUP, lambda *_: (Path(folder) / f"reloaded-{number}").touch())
server = HTTPServer(("127.0.0.1", 0), Pages, bind_and_activate=False)
server.socket = socket.socket(fileno=int(descriptor))
if wanted == "hang":
    time.sleep(60)
server.serve_forever()
