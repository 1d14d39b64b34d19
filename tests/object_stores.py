"""A server on this machine that answers as Google's and Amazon's object stores do, or fails."""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import json
import os
import re
import socket
import struct
import threading
import time
import urllib.parse
from typing import Literal


@dataclasses.dataclass(eq=False)
class Fault:
    """Trouble that a server makes, from when it is added to its faults until it is removed.

    Args:
      requests: A regular expression of the requests that meet it: the method, a space and the
        object's name, which is empty for a listing.
      times: How many requests meet it; None is all of them.
      seconds: How long each of them waits first.
      stalls: Whether they are never answered; the connection stays open until the fault is over.
      status: A status that answers them, without anything being done.
      body: Goes with the status.
      resets: Where the connection is reset: in the middle of the request, before anything is done,
        or in the middle of the answer, after it was done.
      lost_bytes: Of objects that are written, so many bytes at their end are not stored, and
        nobody is told.
      hidden_seconds: Objects that were made in the last so many seconds are not in listings.
      hidden: A regular expression of names that are not in listings.
    """

    requests: str = ""
    times: int | None = None
    seconds: float = 0.0
    stalls: bool = False
    status: int = 0
    body: bytes = b'{"error": {"message": "injected"}}'
    resets: Literal["", "request", "answer"] = ""
    lost_bytes: int = 0
    hidden_seconds: float = 0.0
    hidden: str = ""
    num_met: int = 0


EXPIRED = {
    "gs": (401, b'{"error": {"code": 401, "message": "Invalid Credentials", "errors": []}}'),
    "s3": (
        400,
        b'<?xml version="1.0"?><Error><Code>ExpiredToken</Code><Message>The provided token has '
        b"expired.</Message></Error>",
    ),
}
"""Status and body of an answer to credentials that have expired, by the scheme of the URL."""


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.requests.append(self.path)
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        if url.path.startswith("/storage/v1/b/"):
            bucket, _, key = url.path.removeprefix("/storage/v1/b/").partition("/o")
            listing, key = key == "", urllib.parse.unquote(key[1:])
        else:
            bucket, _, key = url.path[1:].partition("/")
            listing, key = "list-type" in query, urllib.parse.unquote(key)
        if self._meets_fault("" if listing else key):
            return
        objects = self.server.buckets.get(bucket)
        if objects is not None and listing:
            objects = self._listed(bucket)
        if objects is None:
            self._answer(403, b'{"error": {"code": 403, "message": "no access for you"}}')
        elif listing and "list-type" in query:
            keys = "".join(f"<Contents><Key>{k}</Key></Contents>" for k in sorted(objects))
            body = f"<ListBucketResult><KeyCount>{len(objects)}</KeyCount>{keys}</ListBucketResult>"
            self._answer(200, f'<?xml version="1.0"?>{body}'.encode())
        elif listing:
            start, stop = query.get("startOffset", ""), query.get("endOffset") or "\uffff"
            items = [{"name": key} for key in sorted(objects) if start <= key < stop]
            self._answer(200, json.dumps({"items": items}).encode())
        elif key not in objects:
            self._answer(404, b"{}")
        elif refused := self.server.before_read(key, self._num_wanted(len(objects[key]))):
            self._answer(refused, b'{"error": {"message": "refused by the test"}}')
        else:
            self._content(objects[key], self.server.versions.get((bucket, key), 7))

    def _num_wanted(self, size):
        """Return the bytes of an object of a size that a request is for."""
        first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        return max(0, min(size, int(last) + 1 if last else size) - int(first))

    def do_POST(self):
        """Write an object of a store like Google's."""
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        bucket = url.path.removeprefix("/upload/storage/v1/b/").partition("/")[0]
        self._write(bucket, query["name"], query.get("ifGenerationMatch"))

    def do_PUT(self):
        """Write an object of a store like Amazon's."""
        bucket, _, key = urllib.parse.urlsplit(self.path).path[1:].partition("/")
        wanted = self.headers.get("If-Match", "").strip('"')
        self._write(
            bucket,
            urllib.parse.unquote(key),
            "0" if self.headers.get("If-None-Match") else wanted or None,
        )

    def do_DELETE(self):
        self.server.requests.append(self.path)
        path = urllib.parse.urlsplit(self.path).path
        if path.startswith("/storage/v1/b/"):
            bucket, _, key = path.removeprefix("/storage/v1/b/").partition("/o/")
        else:
            bucket, _, key = path[1:].partition("/")
        if self._meets_fault(urllib.parse.unquote(key)):
            return
        self.server.buckets[bucket].pop(urllib.parse.unquote(key), None)
        self._answer(204, b"")

    do_HEAD = do_GET
    _fault = Fault()

    def _write(self, bucket, key, version):
        """Write an object where it still is of a version; "0" stands for no object."""
        self.server.requests.append(self.path)
        size = int(self.headers.get("Content-Length") or 0)
        if self._meets_fault(key, size):
            return None
        content = b"".join(self.rfile.read(num_bytes) for num_bytes in self._slowly(size))
        if len(content) < size:  # the client has ended in the middle of it
            self.close_connection = True
            return None
        if self.server.stalls(key):
            self.server.closing.wait()
            self.close_connection = True
            return None
        if refused := self.server.before_write(key):
            return self._answer(refused, b'{"error": {"message": "refused by the test"}}')
        objects, place = self.server.buckets[bucket], (bucket, key)
        now = str(self.server.versions.get(place, 7)) if key in objects else "0"
        if version not in (None, now):
            return self._answer(412, b"{}")
        if key not in objects:
            self.server.times[place] = time.monotonic()
        objects[key] = content[: len(content) - self._fault.lost_bytes]
        number = self.server.versions[place] = self.server.versions.get(place, 7) + 1
        body = json.dumps({"name": key, "generation": str(number)}).encode()
        self._answer(200, body, {"ETag": f'"{number}"', "x-goog-generation": str(number)})

    def _meets_fault(self, key, size=0):
        """Look whether a request meets a fault; return whether that was its end."""
        what = f"{self.command} {key}"
        with self.server.deciding:
            met = [one for one in self.server.faults if re.search(one.requests, what)]
            fault = next((one for one in met if one.times != one.num_met), Fault())
            fault.num_met += 1
        self._fault = fault
        self.server.closing.wait(fault.seconds)
        if fault.resets == "request":
            self.rfile.read(size // 2)
            self._reset()
            return True
        if fault.stalls or fault.status:
            self.rfile.read(size)
        if fault.stalls:
            while fault in self.server.faults and not self.server.closing.wait(0.05):
                pass
            self.close_connection = True
            return True
        if fault.status:
            self._answer(fault.status, fault.body)
            return True
        return False

    def _reset(self):
        """End the connection as a machine does that has failed."""
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        # The socket itself, which the files of the connection would keep open.
        os.close(self.connection.detach())
        self.close_connection = True

    def _listed(self, bucket):
        """Return the objects of a bucket that a listing has now."""
        fault, now, times = self._fault, time.monotonic(), self.server.times
        return {
            key: data
            for key, data in dict(self.server.buckets[bucket]).items()
            if now - times.get((bucket, key), 0) >= fault.hidden_seconds
            and not (fault.hidden and re.search(fault.hidden, key))
        }

    def _content(self, content, version):
        known = {"ETag": f'"{version}"', "x-goog-generation": str(version)}
        wanted = self.headers.get("Range")
        if not wanted:
            return self._answer(200, content, known)
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        first = int(first)
        if first >= len(content):
            return self._answer(416, b"", {"Content-Range": f"bytes */{len(content)}"})
        part = content[first : int(last) + 1 if last else None]
        span = f"bytes {first}-{first + len(part) - 1}/{len(content)}"
        return self._answer(206, part, {"Content-Range": span, **known})

    def _answer(self, code, body, more=()):
        self.send_response(code)
        headers = {"Content-Length": str(len(body)), "ETag": '"7"', "x-goog-generation": "7"}
        for name, value in (headers | dict(more)).items():
            self.send_header(name, value)
        self.end_headers()
        if self._fault.resets == "answer":
            self.wfile.write(body[: len(body) // 2])
            self._reset()
        elif self.command != "HEAD":
            start = 0
            for num_bytes in self._slowly(len(body)):
                self.wfile.write(body[start : start + num_bytes])
                start += num_bytes

    def _slowly(self, size):
        """Yield the sizes of the blocks that so many bytes come in, each when its time has come."""
        while size > 0:
            block = min(size, 1 << 14)
            if self.server.bytes_per_second:
                time.sleep(block / self.server.bytes_per_second)
            yield block
            size -= block

    def log_message(self, *_):
        pass


class _Server(http.server.ThreadingHTTPServer):
    # A client that sends 32 requests at once would wait for a second to connect once more.
    request_queue_size = 128


@contextlib.contextmanager
def serving(
    buckets,
    bytes_per_second=None,
    stalls=lambda key: False,
    before_write=lambda key: None,
    before_read=lambda key, num_bytes: None,
    faults=(),
):
    """Serve objects, by bucket and key; yield the address, and the list of what is asked for.

    Args:
      buckets: The objects, by key, of each bucket.
      bytes_per_second: How fast contents come and go; None is as fast as can be.
      stalls: Returns whether writing an object is never answered.
      before_write: Called with each object that arrived, before it is stored; returns None, or the
        status of a refusal.
      before_read: Called with each object that is read and the number of its bytes that are asked
        for; returns None, or the status of a refusal.
      faults: A list of `Fault`s, which may change at any time; a request meets the first that it
        matches.
    """
    server = _Server(("127.0.0.1", 0), _Handler)
    server.buckets, server.requests, server.versions = buckets, [], {}
    server.bytes_per_second, server.stalls = bytes_per_second, stalls
    server.before_write, server.before_read = before_write, before_read
    server.faults, server.times, server.deciding = faults, {}, threading.Lock()
    server.closing, server.daemon_threads = threading.Event(), True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", server.requests
    finally:
        server.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()


class Lab:
    """A bucket, and the machines that see it: each has a cache of its own, and nothing else."""

    def __init__(self, monkeypatch, folder):
        self.objects, self.refusals = {}, {}
        self._monkeypatch, self.folder = monkeypatch, folder
        self.move("first")

    def move(self, machine):
        """Work on a machine of this name from here on."""
        self._monkeypatch.setenv("XDG_CACHE_HOME", str(self.folder / machine))

    def refuse(self, key):
        """Return with which status writing an object is refused; None where it is not."""
        found = (status for pattern, status in self.refusals.items() if re.search(pattern, key))
        return next(found, None)

    @contextlib.contextmanager
    def serving(self):
        """Serve the bucket `lab`."""
        with serving({"lab": self.objects}, before_write=self.refuse) as (address, _):
            for name, value in environment(address).items():
                self._monkeypatch.setenv(name, value)
            yield self


def environment(address):
    """Return the variables that lead both kinds of paths to a server, without credentials."""
    return {
        "TENSORSTORE_GCS_HTTP_URL": address,
        "GCE_METADATA_ROOT": "127.0.0.1:9",
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "nothing",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
