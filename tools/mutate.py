#!/usr/bin/env python3
"""Runs, or checks, the mutations of tests/mutations/; tools/mutate.sh says how it is called.

A mutation is a file NN-name.patch: a head, a blank line, one unified diff of files outside tests/.

    What is promised and goes, in one sentence (ids of docs/requirements.md and docs/hardware).
    Build: target...
    Expect: target --gtest_filter=...      one or more lines; each of these runs must fail
    Timeout: seconds                       of one run, for tests that need more than a minute

Works in a copy of the tracked files, with one build that is kept from patch to patch. Ends with 1 when a
mutation survives, does not apply or does not build, with 2 when there is nothing to judge by: the tests
that are named do not pass without any mutation, or the arguments make no sense.
"""
import argparse
import collections
import fnmatch
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
MUTATIONS = ROOT / "tests" / "mutations"
DEFAULT_TIMEOUT = 60
Run = collections.namedtuple("Run", "target filter")
Mutation = collections.namedtuple("Mutation", "name path says build runs timeout")


def parse(path):
    """The mutation of a file; ValueError says what its head lacks."""
    head, _, diff = path.read_text().partition("\n\n")
    says, build, runs, timeout = [], [], [], DEFAULT_TIMEOUT
    for line in head.split("\n"):
        key, _, rest = line.partition(": ")
        if key == "Build":
            build += rest.split()
        elif key == "Expect":
            found = re.fullmatch(r"(\w+) --gtest_filter=(\S+)", rest)
            if not found:
                raise ValueError(f"Expect: {rest}")
            runs.append(Run(*found.groups()))
        elif key == "Timeout":
            timeout = int(rest)
        else:
            says.append(line)
    if not re.fullmatch(r"\d\d-[a-z0-9-]+\.patch", path.name):
        raise ValueError("name is not NN-name.patch")
    if not says or not build or not runs or not diff.startswith("diff --git "):
        raise ValueError("wants a sentence, Build, Expect, a blank line and a diff")
    if not {run.target for run in runs} <= set(build):
        raise ValueError("expects of a program that it does not build")
    return Mutation(path.stem, path, " ".join(says), build, runs, timeout)


def mutations(only):
    found, problems = [], []
    for path in sorted(MUTATIONS.glob("*.patch")):
        try:
            found.append(parse(path))
        except ValueError as error:
            problems.append(f"{path.relative_to(ROOT)}: {error}")
    return [m for m in found if re.search(only, m.name)], problems


# ---- the check ----

def known_tests():
    """{program: {Suite.Test}}, and the ids that a head may cite."""
    tests = {}
    for cmake in ROOT.glob("tests/*/CMakeLists.txt"):
        text = cmake.read_text()
        names = {f"{suite}.{test}" for source in cmake.parent.glob("*.cc")
                 for suite, test in re.findall(r"\bTEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)",
                                               source.read_text())}
        for program in re.findall(r"gpuumd_test\((\w+)", text):
            tests[program] = names
    ids = set(re.findall(r"^\| ([A-Z]+-?\d+) \|", (ROOT / "docs/requirements.md").read_text(), re.M))
    for page in ("choices", "errata", "ualink"):
        ids |= set(re.findall(r"\b[ACDU]\d+\b", (ROOT / f"docs/hardware/{page}.md").read_text()))
    return tests, ids


def check():
    all_of_them, problems = mutations(".")
    tests, ids = known_tests()
    numbers = collections.Counter(m.name[:2] for m in all_of_them)
    problems += [f"tests/mutations: {n} patches have number {number}"
                 for number, n in numbers.items() if n > 1]
    for m in all_of_them:
        where = m.path.relative_to(ROOT)
        applies = subprocess.run(["git", "apply", "--check", m.path], cwd=ROOT, text=True,
                                 capture_output=True)
        if applies.returncode != 0:
            problems.append(f"{where}: {applies.stderr.strip().splitlines()[0]}")
        for run in m.runs:
            for pattern in run.filter.split(":"):
                # The instance of a parameterised test is no part of its name in the source.
                name = re.sub(r"^\w+/([\w*]+\.[\w*]+)(/.*)?$", r"\1", pattern)
                if not fnmatch.filter(tests.get(run.target, ()), name):
                    problems.append(f"{where}: no test {pattern} in {run.target}")
        for cited in re.findall(r"\b(?:[A-Z]{2,4}-\d+|[ACDU]\d+)\b", m.says):
            if cited not in ids:
                problems.append(f"{where}: no id {cited}")
    for problem in problems:
        print(problem)
    return 1 if problems else 0


# ---- the run ----

class Bench:
    """A copy of the tree with one build in it. All that runs is in a process group of its own, and ends
    with us."""

    def __init__(self, directory, jobs):
        self.directory = directory
        self.source = directory / "source"
        self.build_directory = self.source / "build" / "debug"
        self.jobs = jobs
        self.child = None
        self.environment = dict(
            os.environ, CCACHE_BASEDIR=str(self.source), CCACHE_NOHASHDIR="1",
            GIT_CEILING_DIRECTORIES=str(directory), GPUUMD_BIN=str(self.build_directory / "bin"),
            GPUUMD_SOURCE=str(self.source))

    def call(self, command, log, timeout=None):
        """Exit code; None when it did not end in time."""
        with open(log, "ab") as out:
            out.write(f"\n$ {shlex.join(map(str, command))}\n".encode())
            out.flush()
            self.child = subprocess.Popen(command, cwd=self.source, env=self.environment,
                                          stdin=subprocess.DEVNULL, stdout=out,
                                          stderr=subprocess.STDOUT, start_new_session=True)
            try:
                return self.wait(timeout)
            finally:
                self.end_child()

    def wait(self, timeout):
        """Does not reap: until end_child() the process group is surely ours."""
        end = None if timeout is None else time.monotonic() + timeout
        while end is None or time.monotonic() < end:
            ended = os.waitid(os.P_PID, self.child.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            if ended is not None:
                return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
            time.sleep(0.02)
        return None

    def end_child(self):
        if self.child is None:
            return
        os.killpg(self.child.pid, signal.SIGKILL)  # and what it has left behind
        self.child.wait()
        self.child = None

    def copy(self):
        """Files that are as they were keep their time, so that a bench may be used again."""
        names = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                               cwd=ROOT, text=True, capture_output=True, check=True).stdout.split("\0")
        for name in filter(None, names):
            come, go = ROOT / name, self.source / name
            if not come.is_file() or (go.is_file() and go.read_bytes() == come.read_bytes()):
                continue
            go.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(come, go)

    def configure(self, log):
        return self.call(["cmake", "--preset", "debug"], log) == 0

    def build(self, targets, log):
        return self.call(["cmake", "--build", self.build_directory, "--target", *sorted(targets), "--",
                          "-j", str(self.jobs)], log) == 0

    def patch(self, mutation, log, *options):
        return self.call(["git", "apply", *options, mutation.path], log) == 0

    def run(self, run, timeout, log):
        """"passed", "failed", "crashed", "hung" or "nothing to run"."""
        before = log.stat().st_size if log.exists() else 0
        code = self.call([self.build_directory / "bin" / run.target, f"--gtest_filter={run.filter}"],
                         log, timeout)
        if code is None:
            return "hung"
        with open(log, "rb") as text:
            text.seek(before)
            if re.search(rb"Running 0 tests", text.read()):
                return "nothing to run"
        return "passed" if code == 0 else "failed" if code > 0 else "crashed"


def judge(bench, mutation, log):
    """What became of one mutation. The copy is as before when it returns."""
    if not bench.patch(mutation, log):
        return "does not apply"
    try:
        if not bench.build(mutation.build, log):
            return "does not build"
        outcomes = [bench.run(run, mutation.timeout, log) for run in mutation.runs]
    finally:
        bench.patch(mutation, log, "-R")
    if any(outcome in ("passed", "nothing to run") for outcome in outcomes):
        return "SURVIVED"
    unusual = sorted(set(outcomes) - {"failed"})
    return "killed" + (f" ({', '.join(unusual)})" if unusual else "")


def baseline(bench, chosen, log):
    """Builds what all of them need; whether the tests that they name pass."""
    print("== without a mutation", flush=True)
    if not bench.configure(log) or not bench.build({t for m in chosen for t in m.build}, log):
        print(log.read_text(errors="replace")[-4000:])
        return False
    good = True
    timeouts = {}
    for m in chosen:
        for run in m.runs:
            timeouts[run] = max(m.timeout, timeouts.get(run, 0))
    for run, timeout in timeouts.items():
        outcome = bench.run(run, timeout, log)
        if outcome != "passed":
            print(f"{run.target} {run.filter}: {outcome}")
            good = False
    return good


def work(bench, chosen):
    logs = bench.directory / "logs"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    bench.copy()
    start = time.monotonic()
    if not baseline(bench, chosen, logs / "baseline.log"):
        return 2
    results = []
    for m in chosen:
        outcome = judge(bench, m, logs / f"{m.name}.log")
        results.append((m, outcome))
        print(f"{time.monotonic() - start:6.0f}s  {m.name}: {outcome}", flush=True)
    print("\n| mutation | promise that goes | result |\n|---|---|---|")
    for m, outcome in results:
        print(f"| {m.name} | {m.says} | {outcome} |")
    killed = sum(outcome.startswith("killed") for _, outcome in results)
    print(f"\n{killed} of {len(results)} killed")
    return 0 if killed == len(results) else 1


def main():
    arguments = argparse.ArgumentParser(prog="tools/mutate.sh")
    arguments.add_argument("--only", default=".", metavar="REGEX")
    arguments.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N")
    arguments.add_argument("--dir", type=pathlib.Path, metavar="DIR")
    arguments.add_argument("--check", action="store_true")
    options = arguments.parse_args()
    if options.check:
        return check()
    chosen, problems = mutations(options.only)
    if problems or not chosen:
        print("\n".join(problems) or f"no mutation matches {options.only}")
        return 2
    directory = options.dir or pathlib.Path(tempfile.mkdtemp(prefix="gpuumd-mutate-"))
    directory.mkdir(parents=True, exist_ok=True)
    bench = Bench(directory.resolve(), options.jobs)

    def end(number, _):
        sys.exit(128 + number)  # through the `finally`s
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    try:
        return work(bench, chosen)
    finally:
        bench.end_child()
        if options.dir is None:
            shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
