"""Pages of the site that no file holds: the API reference. A hook of MkDocs; see mkdocs.yml.

Public names are found by reading the source, not by importing it. An object is described once, on
the page of its shortest public name; the pages that have it under another name link there.
"""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator, Mapping
from pathlib import Path

import griffe
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
FOLDER = "reference/"
# A module without files for its namespaces: a table of names, not an entry for each.
FACADE = "replicax.tf"


class AsShown(griffe.Extension):
    """Reads our section of one example as code, links pages, leaves out members without a text."""

    def on_object(self, *, obj, **kwargs):
        if obj.docstring:
            text = re.sub(r"(?m)^Example:$", "Examples:", obj.docstring.value)
            obj.docstring.value = re.sub(r"\bdocs/(\w+)\.md", r"[docs/\1.md](../\1.md)", text)

    def on_class(self, *, cls, **kwargs):
        is_enum = any("Enum" in str(base) for base in cls.bases)
        for name, member in list(cls.members.items()):
            is_explained = member.is_alias or member.docstring or name.startswith("_")
            if not (is_explained or is_enum and member.is_attribute):
                del cls.members[name]


def on_files(files, config):
    """Add the pages, and put them where the navigation has their folder."""
    pages = reference()
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    config.nav = filled(config.nav, sorted(pages, key=lambda path: Path(path).stem))
    return files


def on_page_markdown(markdown, page, config, files):
    """Name the files that a page links to and the site has not."""

    def kept(match):
        text, target = match.groups()
        if target.startswith("../"):
            path = f"`{target[3:]}`"
            return path if text.strip("`") in path else f"{text} ({path})"
        return match[0]

    return re.sub(r"\[([^\]]*)\]\(([^)\s]+)\)", kept, markdown)


def filled(nav, pages: list[str]):
    """Return the navigation with the pages in place of their folder."""
    if isinstance(nav, list):
        return [filled(item, pages) for item in nav]
    if isinstance(nav, dict):
        return {title: filled(item, pages) for title, item in nav.items()}
    if nav == FOLDER:
        return [{Path(page).stem: page} for page in pages]
    return nav


def reference() -> dict[str, str]:
    """Return the pages by their paths."""
    package = griffe.load("replicax", search_paths=[SOURCE])
    modules = dict(public_modules("replicax", package))
    homes: dict[str, str] = {}
    for path, module in sorted(modules.items(), key=lambda item: (item[0].count("."), item[0])):
        for name, target in public_names(module).items():
            homes.setdefault(target.path, f"{path}.{name}")
    pages = {path: page_of(path, module, homes) for path, module in modules.items()}
    pages[FACADE] = facade(package, homes)
    return {f"{FOLDER}{path}.md": text for path, text in pages.items()}


def public_modules(path: str, module) -> Iterator[tuple[str, griffe.Object]]:
    """Yield the module and those below it, also those that it has as attributes."""
    yield path, module
    for name, member in shown(module):
        if member.is_module and member.path != "replicax" and f"{path}.{name}" != FACADE:
            yield from public_modules(f"{path}.{name}", member)


def public_names(module) -> dict[str, griffe.Object]:
    # The functions beside our errors are ours.
    hidden = griffe.Kind.FUNCTION if module.name == "errors" else None
    kinds = {griffe.Kind.MODULE, hidden}
    return {name: member for name, member in shown(module) if member.kind not in kinds}


def shown(module) -> Iterator[tuple[str, griffe.Object]]:
    """Yield what a module defines, and what it imports `as` itself, as type checkers do."""
    for name, member in module.members.items():
        if name.startswith("_"):
            continue
        if not member.is_alias:
            yield name, member
        elif f"{name} as {name}" in "".join(
            module.lines[member.alias_lineno - 1 : member.alias_endlineno]
        ):
            yield name, member.final_target


def page_of(path: str, module, homes: Mapping[str, str]) -> str:
    names = {f"{path}.{name}": target for name, target in public_names(module).items()}
    here = [name for name, target in names.items() if homes[target.path] == name]
    members = "".join(f"\n        - {name.rpartition('.')[2]}" for name in sorted(here))
    lines = [f"::: {path}", "    options:", f"      members:{members or ' false'}"]
    elsewhere = sorted(set(names) - set(here))
    if elsewhere:
        lines += ["", "| name here | is |", "|---|---|"]
        lines += [f"| `{name}` | [{homes[names[name].path]}][] |" for name in elsewhere]
    return "\n".join(lines) + "\n"


def facade(package, homes: Mapping[str, str]) -> str:
    """Return the page of `replicax.tf`: a table for each of its namespaces."""
    lines = ["# replicax.tf", "", package[FACADE.partition(".")[2]].docstring.value]
    table = runpy.run_path(str(SOURCE / "replicax" / "tf" / "_names.py"))["NAMESPACES"]
    for namespace, (text, *sources) in table.items():
        lines += ["", f"## {namespace}", "", f"{text[0].upper()}{text[1:]}.", ""]
        named = {
            name: home
            for source in reversed(sources)
            if not isinstance(source, str)
            for name, home in source.items()
        }
        if named:
            lines += ["| name | is |", "|---|---|"]
        for name, home in sorted(named.items()):
            lines.append(f"| `{namespace}.{name}` | {described(package, homes, name, home)} |")
        handed_on = [f"`{source}`" for source in sources if isinstance(source, str)]
        if handed_on:
            lines += [
                "",
                f"{'And' if named else 'It has'} the public names of {', '.join(handed_on)}.",
            ]
    return "\n".join(lines) + "\n"


def described(package, homes: Mapping[str, str], name: str, home: str) -> str:
    """Return a link to the entry of an object of ours, else its first line, else its path."""
    module, colon, other = home.partition(":")
    module = f"{FACADE}{module}" if module.startswith(".") else module
    path = module if colon and not other else f"{module}.{other or name}"
    if not path.startswith("replicax."):
        return f"`{path}`"
    try:
        found = package[path.partition(".")[2]]
        target = found.final_target if found.is_alias else found
    except (KeyError, griffe.AliasResolutionError):
        return ""
    if target.path in homes:
        return f"[{homes[target.path]}][]"
    first = target.docstring.value.partition("\n\n")[0] if target.docstring else ""
    return first.replace("\n", " ").replace("|", "\\|")
