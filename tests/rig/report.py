"""One line for each check, and counts at the end."""
import contextlib
import re
import time

from machine import Trouble


class Skip(Exception):
    """Why a check is left out."""


class Report:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0

    def line(self, state, name, seconds, why=""):
        why = f": {why}" if why else ""
        print(f"{state:4} {name} ({seconds:.1f} s){why}", flush=True)

    @contextlib.contextmanager
    def check(self, name):
        """Counts what is done inside as one check. What it fails of is printed, and the next one goes on."""
        start = time.monotonic()
        took = lambda: time.monotonic() - start
        try:
            yield
        except Skip as why:
            self.skipped += 1
            self.line("skip", name, took(), str(why))
        except (Trouble, OSError, ValueError, KeyError) as why:
            self.failed += 1
            self.line("FAIL", name, took(), f"{why}" if isinstance(why, Trouble) else repr(why))
        else:
            self.passed += 1
            self.line("ok", name, took())

    def googletest(self, name, code, text):
        """The tests of a GoogleTest program, a check each; and one more if it did not come to its end."""
        seen = 0
        for state, test, ms in re.findall(r"^\[ +(OK|FAILED|SKIPPED) +\] (\S+?)(?:, where .*)? \((\d+) ms\)", text, re.M):
            why = ""
            seen += 1
            if state == "OK":
                self.passed += 1
            else:
                body = text.partition(f"[ RUN      ] {test}\n")[2].partition(f"] {test}")[0]
                lines = [line for line in body.splitlines() if line.strip() and not line.startswith("[")]
                why = " / ".join(lines[:4])
                if state == "FAILED":
                    self.failed += 1
                else:
                    self.skipped += 1
            self.line({"OK": "ok", "FAILED": "FAIL", "SKIPPED": "skip"}[state], f"{name}: {test}", int(ms) / 1000, why)
        end = re.search(r"^\[==========\] (\d+) tests? from \d+ test suites? ran", text, re.M)
        if not end or int(end.group(1)) != seen or seen == 0:
            self.failed += 1
            lines = text.strip().splitlines()
            self.line("FAIL", f"{name}: to its end", 0, f"exit code {code}, after: {lines[-1] if lines else 'nothing'}")

    def counts(self):
        return f"{self.passed} passed, {self.failed} failed"
