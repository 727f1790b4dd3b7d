#!/usr/bin/env python3
"""Checks that each page and each id that code, tests or pages cite exists.

- a path docs/....md in any tracked text file is a tracked file, and a section that a comment cites
  with it (docs/page.md "Section") is one of its headings or the beginning of one;
- an id of docs/requirements.md (FH-3, VMB-4, in a test name VMB_4_) is a row there;
- a decision D2.., a rule U01.., a defect A1.. or C1.. in a test name is defined in its page of
  docs/hardware/;
- a test name carries at most three ids;
- a test that docs/requirements.md names (`Suite.Name`) is there;
- nothing cites a path outside the repository.
Prints one line for each that does not, and ends with status 1.
"""
import pathlib
import re
import subprocess
import sys

root = pathlib.Path(__file__).resolve().parent.parent
tracked = subprocess.run(["git", "ls-files"], cwd=root, text=True, capture_output=True,
                         check=True).stdout.split("\n")
TEXT = {".h", ".hpp", ".cc", ".c", ".md", ".txt", ".sh", ".py", ".cmake", ".toml"}
files = [name for name in tracked if pathlib.Path(name).suffix in TEXT and (root / name).exists()]
tracked = set(tracked)
problems = []

GROUPS = "FH|SVM|MIG|PFH|INV|VMB|EVI|MG|DMA|UD|LR|TST|API|UAL"


def text_of(name):
    path = root / name
    return path.read_text(errors="replace") if path.exists() else ""


known = set(re.findall(rf"\b((?:{GROUPS}|K|C)-?\d+)\b", text_of("docs/requirements.md")))
pages = {"D": "choices", "U": "ualink", "A": "errata", "C": "errata"}
defined = {letter: set(re.findall(rf"\b{letter}\d+\b", text_of(f"docs/hardware/{page}.md")))
           for letter, page in pages.items()}

tests = {f"{suite}.{test}" for name in files if name.startswith("tests/")
         for suite, test in re.findall(r"\bTEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)", text_of(name))}
for number, line in enumerate(text_of("docs/requirements.md").split("\n"), 1):
    # Names of tests stand in the last column.
    for cited in re.findall(r"`(\w+\.\w+)`", line.rstrip("| ").rpartition("|")[2]):
        if cited not in tests:
            problems.append(f"docs/requirements.md:{number}: no test {cited}")

headings = {name: re.findall(r"^#+ +(.*)$", text_of(name), re.M) for name in files
            if name.startswith("docs/")}
for name in files:
    text = text_of(name)
    # A citation may go over the end of a line of a comment.
    joined = re.sub(r"\s*\n\s*(?://|\*|#)? *", " ", text)
    for page, section in re.findall(r"\b(docs/[\w./-]+\.md),? \"([^\"]+)\"", joined):
        if not any(heading.startswith(section) for heading in headings.get(page, [section])):
            problems.append(f"{name}: no section \"{section}\" in {page}")
    for number, line in enumerate(text.split("\n"), 1):
        where = f"{name}:{number}"
        for page in re.findall(r"\bdocs/[\w./-]+\.md\b", line):
            if page not in tracked and name != "tools/check_citations.py":
                problems.append(f"{where}: no page {page}")
        for cited in re.findall(rf"\b((?:{GROUPS})-\d+)\b", line):
            if known and cited not in known:
                problems.append(f"{where}: no id {cited} in docs/requirements.md")
        if name != "tools/check_citations.py" and re.search(r"/work/|\bshared/hw\b", line):
            problems.append(f"{where}: cites a place outside the repository")
        test = re.search(r"\bTEST(?:_F|_P)?\(\s*\w+,\s*(\w+)", line)
        if test and name.startswith("tests/"):
            ids = re.findall(rf"(?:^|_)((?:{GROUPS})_\d+|[DUAC]\d+)(?=_|$)", test.group(1))
            if len(ids) > 3:
                problems.append(f"{where}: more than three ids in {test.group(1)}")
            for cited in ids:
                if "_" in cited:
                    if known and cited.replace("_", "-") not in known:
                        problems.append(f"{where}: no id {cited} in docs/requirements.md")
                elif defined[cited[0]] and cited not in defined[cited[0]]:
                    problems.append(
                        f"{where}: no {cited} in docs/hardware/{pages[cited[0]]}.md")

for problem in problems[:60]:
    print(problem)
if problems:
    print(f"{len(problems)} citations of what does not exist")
sys.exit(1 if problems else 0)
