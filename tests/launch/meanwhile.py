"""What goes on beside a test."""

import threading


class Meanwhile(threading.Thread):
    """A thread that runs within the `with` block; its `run` ends when `_over` is set."""

    def __init__(self):
        super().__init__(daemon=True)
        self._over = threading.Event()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *unused):
        self._over.set()
        self.join()
