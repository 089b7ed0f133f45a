"""A strict reader of Prometheus' text format, version 0.0.4, as its page describes it."""

import re

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"'
SAMPLE = re.compile(rf"({NAME})(?:\{{((?:{LABEL},?)*)\}})? (\S+)")
KINDS = ("counter", "gauge", "summary")


def strict(text):
    """The value of each series, by its name and a tuple of labels; fails if a rule is broken."""
    assert text.endswith("\n") or not text
    found, kinds, helped, family = {}, {}, set(), None
    for line in text.splitlines():
        if line.startswith("# HELP "):
            _, _, family, said = line.split(" ", 3)
            assert said
            assert family not in helped  # all lines of a family are one group
            helped.add(family)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == family
            assert kind in KINDS
            assert name.endswith("_total") == (kind == "counter")
            kinds[name] = kind
        else:
            matched = SAMPLE.fullmatch(line)
            assert matched, line
            name, labels, value = matched[1], matched[2] or "", float(matched[5])
            of_summary = re.sub("_(sum|count)$", "", name)
            assert (of_summary if kinds.get(of_summary) == "summary" else name) == family
            assert kinds[family] != "counter" or value >= 0
            pairs = tuple((label, said) for label, said in re.findall(LABEL, labels))
            assert len(dict(pairs)) == len(pairs)
            assert (name, pairs) not in found
            found[name, pairs] = value
    return found
