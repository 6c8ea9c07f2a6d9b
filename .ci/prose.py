#!/usr/bin/env python3
"""prose.py [--show ROOM] [--lower]: counts hard-to-read constructions per thousand words, room by room.

It reads comments and sentences in strings of Go and JavaScript, the help texts of commands, C++ comments, Markdown, and the comments and
docstrings of scripts: Python, shell, the Makefile, CMake and YAML. Generated documents are left out. Tests are rooms of their own, and so
are scripts. A room may have LIMIT per thousand words, or its figure in ABOVE (rounded up), which may only fall. Exits with 1 if a room is
above its limit.
  --show ROOM   print every hit of the rooms whose name begins with ROOM
  --lower       lower the figures in ABOVE to today's
"""
import argparse
import math
import re
import subprocess
import sys

LIMIT = 6
ABOVE = {
    "bench/document (tests)": 14,
    "bench/gpu (tests)": 11,
}

# Names of the patterns, each with an expression and a better phrase.
PATTERNS = [
    ("of which", r"\b(?:of|from|with|without|by|among|to) (?:which|whom)\b", "two sentences"),
    ("of what", r"\b(?:of|from|with|without|by|beside|besides|to|than|except|but|and|only|all|for|into|after|before) what\b", "name the thing"),
    ("is what", r"\b(?:is|are|was|were) what\b", "name the thing"),
    ("What ... is", r"(?:^|[.;:] )What [^.?]*\.", "name the thing"),
    ("is no", r"(?<!there )(?<!it )\b(?:is|are|was|were|be) no (?!longer\b|more than\b|larger\b|smaller\b|such\b)\w+", "is not a"),
    ("is none", r"\b(?:is|are|was|were) none\b", "there is no"),
    ("nobody", r"\b(?:nobody|whoever|everybody|somebody|anybody|whatever|whichever)\b", "name the actor"),
    ("that of", r"\b(?:that|those|this|these) of\b", "repeat the noun"),
    ("is to do", r"\b(?:is|are|was|were) (?:not )?to (?!the\b|a\b|an\b|its\b|their\b|this\b|it\b|be$)[a-z]+", "must, will, should"),
    ("so many", r"\bso (?:many|few)\b", "n"),
    ("beside", r"\b(?:beside|besides)\b", "next to, in addition to"),
    ("but for", r"\bbut for\b", "except"),
    ("for want of", r"\bfor want of\b", "because there is no"),
    ("need no", r"\bneeds? (?:no|nothing)\b|\bnothing needs?\b", "does not need"),
    ("no more", r"\b(?:no|any) more\b(?! than)", "no longer"),
    ("says", r"\b(?:says|said|saying|tells|told|telling)\b", "returns, reports, states"),
    ("hears", r"\b(?:hears|heard|knows|knew|wants|wanted|speaks|spoke|talks|learns of)\b", "receives, has, needs, uses"),
    ("else than", r"\belse than\b|\bother than that\b|\botherwise than\b", "other than"),
    ("goes on", r"\b(?:go|goes|went|going|gone) on\b", "continues"),
    ("comes to", r"\b(?:comes?|came) (?:to|of|out of)\b", "reaches, results in"),
    ("held against", r"\b(?:hold|holds|held)\b[^.]{0,40} against\b", "compares with, checks against"),
    ("to the bit", r"\bto the bit\b|\ball the same\b", "bit for bit, nevertheless"),
    ("at hand", r"\b(?:at hand|at all events|by and by|in vain)\b", "available"),
    ("what there is", r"\bwhat there (?:is|was)\b|\ball that there (?:is|was)\b", "name the thing"),
    ("where there", r"\bwhere (?:there is|there are|it is|that is|this is|they are)\b", "if"),
    ("makes nothing", r"\b(?:does|did|do|costs|takes|loses|finds|gives|makes) (?:nothing|none)\b", "does not"),
    ("one of all", r"\b(?:one of all|all of it|all of them|some of it)\b", "name the things"),
    ("it has of", r"\b(?:has|have|had) of\b", "name the thing"),
    ("lets", r"\blets? (?:it|them|go)\b", "allows, removes"),
]
COMPILED = [(name, re.compile(e, re.I if name != "What ... is" else 0), better) for name, e, better in PATTERNS]
DOC = re.compile(r"^(?:// )(\w+) (?:is|are|says|tells|was|were)\b")  # of a function: a verb in the third person is missing

GO = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|`[^`]*`|\'(?:\\.|[^\'\\\n])+\'', re.S)
CPP = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.S)
# In a shell script, the Makefile, CMake and YAML, # begins a comment only after white space.
SHELL = re.compile(r"(?:^|(?<=[ \t]))#+(?:[ \t][^\n]*|$)", re.M)
# A docstring begins its line; other strings are skipped, with any # in them.
PYTHON = re.compile(r'(?P<doc>^[ \t]*[rR]?"""(?:\\.|.)*?""")|"""(?:\\.|.)*?"""|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|#[^\n]*', re.S | re.M)
QUESTION = re.compile(r'\s*"""(?:Whether|What|How|Which|Where|Why)\b')  # begins a docstring that has no verb
DIRECTIVE = re.compile(r"#!|# (?:SPDX|shellcheck|noqa|type:|fmt:)")
GENERATED = {"docs/config.md", "docs/metrics.md", "docs/benchmarks.md", "CHANGELOG.md", "THIRD_PARTY.md", "CODE_OF_CONDUCT.md"}


TEST = re.compile(r"_test\.(?:go|cpp)$|/(?:test|wrong)/|[a-z]+test/")


def room(path):
    """Returns the name under which a file's words are counted."""
    if script(path):
        return ("testdata" if "testdata/" in path else place(path)) + (" (scripts)" if "/" in path else "")
    return place(path) + (" (tests)" if TEST.search(path) and not path.endswith(".md") else "")


def script(path):
    """Reports whether a file is the Makefile, a CMake, YAML or Python file, or a shell script, with or without an ending."""
    if path == "Makefile" or path.endswith((".py", ".sh", ".sbatch", ".cmake", "CMakeLists.txt", ".yaml", ".yml")):
        return True
    if "." in path.split("/")[-1]:
        return False
    with open(path, "rb") as f:
        return f.read(2) == b"#!"


def place(path):
    folders = path.split("/")[:-1]
    if path.endswith(".md"):
        if folders[:1] == ["docs"] and len(folders) == 1 or not folders:
            return path
        return "/".join(folders[:2]) + "/*.md"
    if not folders:
        return path if path == "Makefile" else "."
    if folders == ["trainer"]:
        return "trainer/*.go"
    return "/".join(folders[: 3 if folders[0] == "trainer" else 2])


def blocks(path, text):
    """Yields line, kind and words of each comment, sentence or paragraph: a run of // lines is one."""
    if path.endswith(".md"):
        text = re.sub(r"^```.*?^```|<!--.*?-->", lambda m: "\n" * m[0].count("\n"), text, flags=re.S | re.M)
        for n, line in paragraphs(text):
            yield n, "text", re.sub(r"`[^`]*`|\]\([^)]*\)", "X", line)
        return
    run, at, last = [], 0, -1
    for m in syntax(path).finditer(text):
        token, line = m[0], text.count("\n", 0, m.start()) + 1
        if token.startswith(("//", "#")):
            if token.startswith(("//go:", "// SPDX")) or DIRECTIVE.match(token):
                continue
            if line != last + 1:
                if run:
                    yield at, kind_of(text, run, last), clean(run)
                run, at = [], line
            run.append(token)
            last = line
        elif token.startswith("/*"):
            yield line, "comment", re.sub(r"^\s*\*", "", token[2:-2], flags=re.M)
        elif path.endswith(".py"):
            if m.lastgroup == "doc":
                yield line, "doc" if QUESTION.match(token) else "comment", token
        elif path.endswith((".go", ".js")) and len(re.findall(r"[a-z]{2,}", token)) >= 4 and (token[0] == '"' or prints(token, text[:m.start()])):
            yield line, "string", token
    if run:
        yield at, kind_of(text, run, last), clean(run)


def prints(token, before):
    """Reports whether a Go string in backquotes is the help of a flag or of a command."""
    return token[0] == "`" and (re.search(r'[` ]help:"', token) or before.endswith("Help() string {\n\treturn "))


def syntax(path):
    """Returns the expression that finds comments and strings."""
    if script(path):
        return PYTHON if path.endswith(".py") else SHELL
    return GO if path.endswith((".go", ".js")) else CPP


def paragraphs(text):
    lines, at = [], 1
    for n, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.lstrip().startswith(("|", "- ", "#")):
            if lines:
                yield at, " ".join(lines)
            lines, at = [], n
        if line.strip():
            if not lines:
                at = n
            lines.append(line.strip())
    if lines:
        yield at, " ".join(lines)


def kind_of(text, run, last):
    following = text.split("\n", last)[-1] if text.count("\n") >= last else ""
    return "doc" if following.startswith("func ") and DOC.match(run[0]) else "comment"


def clean(run):
    return " ".join(line.lstrip("/#").strip() for line in run)


def hits(path, text):
    """Returns the number of words and the hits (line, pattern, excerpt)."""
    words, found = 0, []
    for line, kind, block in blocks(path, text):
        words += len(re.findall(r"[A-Za-z]+", block))
        if kind == "doc":
            found.append((line, "doc comment (name, verb: returns, reports whether)", block[:70]))
        for name, expression, better in COMPILED:
            for m in expression.finditer(block):
                found.append((line, f"{name} ({better})", block[max(0, m.start() - 45):m.end() + 45]))
    return words, found


def files():
    for path in subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.splitlines():
        if path in GENERATED or "third_party" in path or "testdata/" in path and not path.endswith((".py", ".sh")):
            continue
        if script(path) or re.search(r"\.(?:go|js|cpp|cu|cuh|h|md)$", path) and not (path.endswith(".md") and TEST.search(path)):
            yield path


def measure(show):
    rooms = {}
    for path in files():
        try:
            with open(path, encoding="utf-8") as f:
                words, found = hits(path, f.read())
        except (OSError, UnicodeDecodeError) as e:
            sys.exit(f"{path}: {e}")
        r = rooms.setdefault(room(path), [0, 0])
        r[0] += words
        r[1] += len(found)
        if show is not None and room(path).startswith(show):
            for line, name, excerpt in found:
                print(f"{path}:{line}: {name}: {excerpt}")
    return rooms


def lower(rooms):
    """Writes today's figures of the rooms above LIMIT into this file, unless they are higher than before."""
    with open(__file__, encoding="utf-8") as f:
        text = f.read()
    rows = []
    for name, (words, count) in sorted(rooms.items()):
        if not words or count <= allowed(words, LIMIT):
            continue
        figure = math.ceil(1000 * count / words)
        rows.append(f'    "{name}": {min(figure, ABOVE.get(name, figure))},\n')
    text = re.sub(r"^ABOVE = \{\n.*?^\}", lambda _: "ABOVE = {\n" + "".join(rows) + "}", text, flags=re.S | re.M)
    with open(__file__, "w", encoding="utf-8") as f:
        f.write(text)


def allowed(words, limit):
    return max(2, limit * words / 1000)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--show")
    parser.add_argument("--lower", action="store_true")
    options = parser.parse_args()
    rooms = measure(options.show)
    if options.show is not None:
        return
    if options.lower:
        lower(rooms)
        return
    failed = []
    for name, (words, count) in sorted(rooms.items(), key=lambda r: -r[1][1] / max(r[1][0], 1)):
        limit = ABOVE.get(name, LIMIT)
        above = words and count > allowed(words, limit)
        print(f"{1000 * count / max(words, 1):6.1f} of {limit:3d}  {words:6d} words  {name}{'  <- above its limit' if above else ''}")
        if above:
            failed.append(name)
    total = [sum(r[i] for r in rooms.values()) for i in (0, 1)]
    print(f"{1000 * total[1] / total[0]:6.1f}           {total[0]:6d} words  all rooms")
    if failed:
        sys.exit(f"above the limit: {', '.join(failed)}\n.ci/prose.py --show ROOM prints each place")


main()
