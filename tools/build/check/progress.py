"""The progress of a step while it runs."""

import contextlib
import json
import os
import shutil
import sys
import threading
import time


class BuildEvents:
    """Counts targets in the file of --build_event_json_file while Bazel writes it."""

    def __init__(self, path):
        self._path = path
        self._offset = 0
        self._configured = 0
        self._built = 0
        self._tested = 0

    def _read(self):
        if not os.path.exists(self._path):
            return
        with open(self._path, "rb") as file:
            file.seek(self._offset)
            text = file.read()
        whole = text[:text.rfind(b"\n") + 1]  # The last line may be half written.
        self._offset += len(whole)
        for line in whole.splitlines():
            event = json.loads(line)
            identity = event.get("id", {})
            # Configured targets of other kinds carry no event of this name.
            self._configured += "configured" in event and "targetConfigured" in identity
            self._built += "targetCompleted" in identity
            self._tested += "testSummary" in identity

    def text(self):
        self._read()
        if not self._configured:
            return "loading"
        tested = ", %d tests run" % self._tested if self._tested else ""
        return "%d of %d targets built%s" % (self._built, self._configured, tested)


class Progress:
    """One line a minute, or, on a terminal, one that is painted over each second.

    Of nested activities the innermost one is shown. Bazel shows its own where
    there is a terminal: see bazel().
    """

    def __init__(self, out=None, terminal=None, clock=time.monotonic):
        self._out = out or sys.stdout
        # Bazel, too, wants both.
        self.terminal = terminal if terminal is not None else (
            sys.stdout.isatty() and sys.stderr.isatty())
        self._clock = clock
        self._stack = []
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def tick(self):
        """Shows the innermost activity, unless it shows itself."""
        with self._lock:
            if not self._stack:
                return
            name, start, count = self._stack[-1]
            if count is None:
                return
            text = "running  %s (%s%d s)" % (
                name, "".join(c + ", " for c in [count()] if c), self._clock() - start)
            if self.terminal:
                columns = shutil.get_terminal_size().columns
                self._out.write("\r\033[K" + text[:columns - 1])
            else:
                self._out.write(text + "\n")
            self._out.flush()

    def _run(self):
        while not self._ended.wait(1 if self.terminal else 60):
            self.tick()

    def _wipe(self):
        if self.terminal:
            self._out.write("\r\033[K")
            self._out.flush()

    @contextlib.contextmanager
    def of(self, name, count=lambda: ""):
        """Context in which `name` runs; count() returns its progress."""
        outermost = not self._stack
        with self._lock:
            self._wipe()
            self._stack.append((name, self._clock(), count))
        if outermost:
            self._ended.clear()
            thread = threading.Thread(target=self._run, daemon=True)
            thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._stack.pop()
                self._wipe()
            if outermost:
                self._ended.set()
                thread.join()

    @contextlib.contextmanager
    def bazel(self, name, events):
        """While it lasts, Bazel runs and writes the file `events`.

        Yields the options that Bazel needs for it.
        """
        with self.of(name, None if self.terminal else BuildEvents(events).text):
            yield ["--show_progress" if self.terminal else "--noshow_progress",
                   "--build_event_json_file=" + events]
