#!/usr/bin/env python3
"""prose.py [--show ROOM] [--lower]: counts, room by room, what makes text hard to read.

It counts hard-to-read constructions, doc comments without a verb, sentences of more than 30 words, and lines of more than 140 characters.
It reads comments and sentences in strings of Go and JavaScript, the help texts of commands, Markdown, and comments of C++ and Lua. It also
reads the comments and docstrings of scripts: Python, shell, the Makefile, CMake and YAML. Long sentences and lines are counted in comments,
Markdown and help texts only, without tables and code. Generated documents are left out. Tests are rooms of their own, and so are scripts.

A room may have the kind's LIMIT per thousand words, or its figure in ABOVE (rounded up), which may only fall. If that limit is not 0, two
of a kind are always allowed. Exits with 1 if a room is above a limit.
  --show ROOM   print every hit of the rooms whose name begins with ROOM
  --lower       lower the figures in ABOVE to today's, and add rooms that are above LIMIT
"""
import argparse
import math
import re
import subprocess
import sys
import textwrap

KINDS = ["constructions", "docs", "sentences", "lines"]
WORDS = 30  # of a sentence
WIDTH = 140  # of a line
# Per thousand words of a room, by kind.
LIMIT = {"constructions": 4, "docs": 0, "sentences": 1, "lines": 0}
ABOVE = {
    ("bench/studies (tests)", "lines"): 5,
    ("bench/studies/*.md", "lines"): 1,
    ("bench/gpu (scripts)", "lines"): 4,
    ("bench/gpu (tests)", "constructions"): 10,
    ("docs/results/*.md", "sentences"): 4,
    ("docs/roofline.md", "lines"): 12,
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
LUA = re.compile(r"--[^\n]*|'(?:\\.|[^'\\\n])*'")
# In a shell script, the Makefile, CMake and YAML, # begins a comment only after white space.
SHELL = re.compile(r"(?:^|(?<=[ \t]))#+(?:[ \t][^\n]*|$)", re.M)
# A docstring begins its line; other strings are skipped, with any # in them.
PYTHON = re.compile(r'(?P<doc>^[ \t]*[rR]?"""(?:\\.|.)*?""")|"""(?:\\.|.)*?"""|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|#[^\n]*', re.S | re.M)
QUESTION = re.compile(r'\s*"""(?:Whether|What|How|Which|Where|Why)\b')  # begins a docstring that has no verb
DIRECTIVE = re.compile(r"#!|# (?:SPDX|shellcheck|noqa|type:|fmt:)")
GENERATED = {"docs/config.md", "docs/benchmarks.md", "THIRD_PARTY.md", "CODE_OF_CONDUCT.md"}


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
        for n, line in paragraphs(without_code(text)):
            yield n, "text", re.sub(r"`[^`]*`|\]\([^)]*\)", "X", line)
        return
    run, at, last = [], 0, -1
    for m in syntax(path).finditer(text):
        token, line = m[0], text.count("\n", 0, m.start()) + 1
        if token.startswith(("//", "#", "--")):
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


def comments(path, text):
    """Yields the first line and the rows of each comment, paragraph or help text. Comments after code on consecutive lines are several."""
    if path.endswith(".md"):
        yield 1, without_code(text).split("\n")
        return
    at, rows, was_alone = 0, [], False
    for m in syntax(path).finditer(text):
        token, line = m[0], text.count("\n", 0, m.start()) + 1
        if token.startswith(("//", "#", "--")):
            if token.startswith(("//go:", "// SPDX")) or DIRECTIVE.match(token):
                continue
            alone = not text[text.rfind("\n", 0, m.start()) + 1:m.start()].strip()
            if not (alone and was_alone and line == at + len(rows)):
                yield at, rows
                at, rows = line, []
            rows.append(re.sub(r"^(?://+|#+|--) ?", "", token))
            was_alone = alone
        elif token.startswith("/*"):
            yield line, [re.sub(r"^ *\* ?", "", row) for row in token[2:-2].split("\n")]
        elif path.endswith(".py") and m.lastgroup == "doc":
            yield line, textwrap.dedent(re.sub(r'\s*r?"""', lambda q: "" if q.start() else "    ", token)).split("\n")
        elif path.endswith(".go") and prints(token, text[:m.start()]):
            for words in re.findall(r'[` ]help:"((?:\\.|[^"\\])*)"', token) or [token[1:-1]]:
                yield line, words.split("\n")
    yield at, rows


def passages(path, text):
    """Yields the first line and the text of each paragraph and list item, without headings, tables and indented code."""
    for at, rows in comments(path, text):
        start, passage, item = at, [], False
        for n, row in enumerate([*rows, ""], at):
            marked = re.match(r" *(?:[-*]|\d+\.) ", row)
            code = re.match(r"\t| {2}", row) and not marked and not item
            if code or marked or not row.strip() or re.match(r" *(?:\||#|<|!\[)", row):
                if passage:
                    yield start, " ".join(passage)
                passage, item = [], False
                if not marked:
                    continue
                row, item = row[marked.end():], True
            if not passage:
                start = n
            passage.append(row.strip())


def sentences(path, text):
    """Returns the sentences of more than WORDS words as hits. A name in backquotes and a link's address are one word."""
    found = []
    for line, passage in passages(path, text):
        for sentence in re.split(r"(?<=[.!?])[\"”)*]*\s+", re.sub(r"`[^`]*`|\]\([^)]*\)", "X", passage)):
            words = sum(bool(re.search("[A-Za-z]", word)) for word in sentence.split())
            if words > WORDS:
                found.append((line, f"sentence of {words} words", sentence))
    return found


def lines(path, text):
    """Returns the lines of more than WIDTH characters as hits, if a comment, Markdown's text or a help text is on them."""
    source, found = text.split("\n"), {}
    for at, rows in comments(path, text):
        for n, row in enumerate(rows, at):
            whole = row if path.endswith(".md") or row not in source[n - 1] else source[n - 1].expandtabs(4)
            if 'help:"' in whole:
                whole = row
            code = r"\t| {4,}(?![-*] )| *\|" if path.endswith(".md") else r"\t| {2,}(?![-*] )| *\|"  # also tables
            if len(whole) > WIDTH and not re.match(code, row):
                found[n] = (n, f"line of {len(whole)} characters", row)
    return list(found.values())


def without_code(text):
    return re.sub(r"^```.*?^```|<!--.*?-->", lambda m: "\n" * m[0].count("\n"), text, flags=re.S | re.M)


def prints(token, before):
    """Reports whether a Go string in backquotes is the help of a flag or of a command."""
    return token[0] == "`" and (re.search(r'[` ]help:"', token) or before.endswith("Help() string {\n\treturn "))


def syntax(path):
    """Returns the expression that finds comments and strings."""
    if script(path):
        return PYTHON if path.endswith(".py") else SHELL
    if path.endswith(".lua"):
        return LUA
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
    return " ".join(line.lstrip("/#-").strip() for line in run)


def constructions(path, text):
    """Returns the number of words, the hits (line, pattern, excerpt), and the doc comments without a verb in the same form."""
    words, found, docs = 0, [], []
    for line, kind, block in blocks(path, text):
        words += len(re.findall(r"[A-Za-z]+", block))
        if kind == "doc":
            docs.append((line, "doc comment (name, verb: returns, reports whether)", block[:70]))
        for name, expression, better in COMPILED:
            for m in expression.finditer(block):
                found.append((line, f"{name} ({better})", block[max(0, m.start() - 45):m.end() + 45]))
    return words, found, docs


def files():
    for path in subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.splitlines():
        if path in GENERATED or "third_party" in path or "testdata/" in path and not path.endswith((".py", ".sh")):
            continue
        if script(path) or re.search(r"\.(?:go|js|cpp|cu|cuh|h|lua|md)$", path) and not (path.endswith(".md") and TEST.search(path)):
            yield path


def measure(show):
    """Returns the words and the hits by kind of each room."""
    rooms = {}
    for path in files():
        try:
            with open(path, encoding="utf-8") as f:
                text = f.read()
        except (OSError, UnicodeDecodeError) as e:
            sys.exit(f"{path}: {e}")
        words, found, docs = constructions(path, text)
        r = rooms.setdefault(room(path), {"words": 0, **dict.fromkeys(KINDS, 0)})
        r["words"] += words
        for kind, hits in zip(KINDS, (found, docs, sentences(path, text), lines(path, text))):
            r[kind] += len(hits)
            if show is not None and room(path).startswith(show):
                for line, name, excerpt in hits:
                    print(f"{path}:{line}: {name}: {excerpt}")
    return rooms


def lower(rooms):
    """Writes today's figures above LIMIT into this file, unless they are higher than before."""
    with open(__file__, encoding="utf-8") as f:
        text = f.read()
    rows = []
    for name, r in sorted(rooms.items()):
        for kind in KINDS:
            if r["words"] and r[kind] > allowed(r["words"], LIMIT[kind]):
                figure = math.ceil(1000 * r[kind] / r["words"])
                rows.append(f'    ("{name}", "{kind}"): {min(figure, ABOVE.get((name, kind), figure))},\n')
    text = re.sub(r"^ABOVE = \{\n.*?^\}", lambda _: "ABOVE = {\n" + "".join(rows) + "}", text, flags=re.S | re.M)
    with open(__file__, "w", encoding="utf-8") as f:
        f.write(text)


def allowed(words, limit):
    return limit and max(2, limit * words / 1000)


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
    print("per 1000 words: constructions, doc comments, sentences and lines, each with its limit")
    for name, r in sorted(rooms.items(), key=lambda r: -sum(r[1][k] for k in KINDS) / max(r[1]["words"], 1)):
        figures, above = [], False
        for kind in KINDS:
            limit = ABOVE.get((name, kind), LIMIT[kind])
            above = above or r["words"] and r[kind] > allowed(r["words"], limit)
            figures.append(f"{1000 * r[kind] / max(r['words'], 1):5.1f} of {limit:2d}")
        print(f"{'  '.join(figures)}  {r['words']:6d} words  {name}{'  <- above a limit' if above else ''}")
        if above:
            failed.append(name)
    total = {key: sum(r[key] for r in rooms.values()) for key in ("words", *KINDS)}
    figures = [f"{1000 * total[kind] / total['words']:5.1f}      " for kind in KINDS]
    print(f"{'  '.join(figures)}  {total['words']:6d} words  all rooms")
    if failed:
        sys.exit(f"above the limit: {', '.join(failed)}\n.ci/prose.py --show ROOM prints each place")


main()
