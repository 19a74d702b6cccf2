"""A server between a client and another server that fails in every way a network can."""

import contextlib
import http.client
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_OF_A_HOP = frozenset({"connection", "content-length", "date", "keep-alive", "server", "transfer-encoding"})


class Proxy(BaseHTTPRequestHandler):
    """Passes requests on to the server, or does not.

    Attributes:
        target: Host and port of the server.
        address: Its own URL, once it listens.
        fault: What happens to requests and answers from now on: ``refuse``, a status, ``slow``, ``lose the
            answer`` after the server has given it, ``hold`` both back until the fault is another
            one; empty: nothing.
    """

    protocol_version = "HTTP/1.1"
    target = ""
    address = ""
    fault = ""

    def fault_of_request(self) -> str:
        """Name the fault of this request."""
        return type(self).fault

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        del self.headers["Transfer-Encoding"]
        chunks = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(chunks)

    def _hold(self) -> None:
        while type(self).fault == "hold":
            time.sleep(0.05)

    def answer(self) -> None:
        """Serve one request."""
        fault = self.fault_of_request()
        body = self._body()
        if fault == "refuse":
            self.close_connection = True
            return
        if fault.isdigit():
            self.reply(int(fault), b"{}" if fault == "200" else b"", {})
            return
        if fault == "slow":
            time.sleep(1.5)
        self._hold()
        upstream = http.client.HTTPConnection(self.target, timeout=60)
        try:
            upstream.request(self.command, self.path, body, dict(self.headers))
            answer = upstream.getresponse()
            content = answer.read()
        except OSError:  # a client that was left behind still asks when the server is gone
            self.close_connection = True
            return
        finally:
            upstream.close()
        self._hold()
        if fault == "lose the answer":
            self.close_connection = True
            return
        headers = {name: value for name, value in answer.getheaders() if name.lower() not in _OF_A_HOP}
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        self.reply(answer.status, content, headers, length)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = answer

    def reply(self, status: int, content: bytes, headers: dict[str, str], length: str | None = None) -> None:
        """Send an answer; whoever asked may have given up."""
        with contextlib.suppress(OSError):
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if status != http.client.NO_CONTENT:
                self.send_header("Content-Length", length or str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class LosingProxy(Proxy):
    """Loses the answer to the first request of each kind that changes a resource, for every resource."""

    lost: set[tuple[str, str]]

    def fault_of_request(self) -> str:
        request = (self.command, self.path)
        if self.command in ("GET", "HEAD") or request in self.lost:
            return super().fault_of_request()
        self.lost.add(request)
        return "lose the answer"


@contextlib.contextmanager
def listening(target: str, kind: type[Proxy] = Proxy) -> Iterator[type[Proxy]]:
    """Yield a proxy of its own, a class to set the fault of, in front of a server at host:port."""
    handler = type("ThisProxy", (kind,), {"target": target, "fault": "", "lost": set()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        handler.address = f"http://127.0.0.1:{server.server_port}"
        try:
            yield handler
        finally:
            handler.fault = "refuse"
            server.shutdown()
            thread.join()
