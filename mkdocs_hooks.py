"""Hooks of the documentation site: pages outside of docs/, links to them, navigation of folders, a check for other hosts."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).parent
OUTSIDE = ["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]
FOLDERS = {"decisions/": ROOT / "docs", "examples/": ROOT}

_LINK = re.compile(r"(\[[^\]]*\])\(([^)\s#]+)(#[^)\s]*)?\)")
_FENCE = re.compile(r"(?ms)(^```.*?^```)")
_LOADED = re.compile(
    r"""<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=["']?((?:https?:)?//[^"'\s>]+)|url\(["']?((?:https?:)?//[^)"']+)"""
)


def outside_pages() -> list[str]:
    """Return the pages of the repository that are part of the site but not in docs/."""
    examples = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "examples").rglob("README.md"))
    return [*OUTSIDE, *examples]


def pages_of(folder: str) -> list[str]:
    """Return the pages of a folder, its README first."""
    base = FOLDERS[folder]
    pages = [path.relative_to(base).as_posix() for path in (base / folder).rglob("*.md")]
    return sorted(pages, key=lambda page: (page.count("/"), not page.endswith("README.md"), page))


def with_folders(nav: list[Any]) -> list[Any]:
    """Replace each folder in the navigation with its pages."""
    return [{title: pages_in(value) for title, value in entry.items()} if isinstance(entry, dict) else entry for entry in nav]


def pages_in(value: Any) -> Any:
    """Return the pages of one entry of the navigation: of a section, of a folder, or the page itself."""
    if isinstance(value, list):
        return with_folders(value)
    return pages_of(value) if value in FOLDERS else value


def anchor_of(heading: str, separator: str) -> str:
    """Return the anchor of a heading as tests/test_docs.py computes it, which is GitHub's format."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", separator)


def on_config(config: Any) -> Any:
    config["mdx_configs"]["toc"]["slugify"] = anchor_of
    config["nav"] = with_folders(config["nav"])
    return config


def on_files(files: Any, config: Any) -> Any:
    for page in outside_pages():
        files.append(File.generated(config, page, content=(ROOT / page).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Point links between docs/ and the rest of the repository to their pages in the site; links to other files become text."""
    uri = page.file.src_uri
    here = uri if uri in outside_pages() else f"docs/{uri}"

    def rewritten(match: re.Match[str]) -> str:
        text, link, anchor = match[1], match[2], match[3] or ""
        if "://" in link or link.startswith("mailto:"):
            return match[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(here), link))
        inside = "index.md" if target == "README.md" else target.removeprefix("docs/")
        if files.get_file_from_path(inside) is None:
            return text[1:-1]
        return f"{text}({posixpath.relpath(inside, posixpath.dirname(uri) or '.')}{anchor})"

    parts = _FENCE.split(markdown)
    return "".join(part if part.startswith("```") else _LINK.sub(rewritten, part) for part in parts)


def on_post_build(config: Any) -> None:
    """Fail if a page or style sheet loads anything from another host."""
    site = Path(config["site_dir"])
    found = {
        f"{path.relative_to(site)}: {match[1] or match[2]}"
        for path in [*site.rglob("*.html"), *site.rglob("*.css")]
        for match in _LOADED.finditer(path.read_text(encoding="utf-8"))
        if "canonical" not in match[0]
    }
    if found:
        raise PluginError("the site loads files from other hosts:\n" + "\n".join(sorted(found)))
