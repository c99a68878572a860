"""How Sphinx builds the site: ``make docs``."""

from __future__ import annotations

import importlib
import os
import re
import sys
import warnings
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging

import dladmm

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "benchmarks"))

project = "dladmm"
author = "The dladmm developers"
copyright = "the dladmm developers, Apache-2.0"
version = release = dladmm.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "results", "gallery/*.ipynb", "gallery/*.py", "**.ipynb_checkpoints"]
suppress_warnings = ["config.cache"]

html_theme = "furo"
html_math_renderer = "mathml"
html_title = "dladmm"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
copybutton_exclude = ".linenos, .gp, .go"

myst_enable_extensions = ["colon_fence", "deflist", "attrs_inline", "dollarmath"]
myst_heading_anchors = 3

# Tutorials and pages with cells are run anew for every change; a failing cell fails the build.
nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE / "_build" / ".cells")
nb_execution_timeout = 120
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True
os.environ.setdefault("PYTHONWARNINGS", "ignore")
# Nobody's own profile, and a kernel that says little
os.environ["IPYTHONDIR"] = str(HERE / "_build" / ".ipython")
PROFILE = HERE / "_build" / ".ipython" / "profile_default"
PROFILE.mkdir(parents=True, exist_ok=True)
(PROFILE / "ipython_kernel_config.py").write_text("c.IPKernelApp.log_level = 40\n", encoding="utf-8")

autodoc_default_options = {
    "members": True,
    "member-order": "bysource",
    "exclude-members": "get_metadata_routing, "
    + ", ".join(
        f"set_{name}_request" for name in ("fit", "partial_fit", "predict", "predict_proba", "score")
    ),
}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True

# What signatures are cut into, and two names that their docstrings give without their module
nitpick_ignore_regex = [
    (r"py:class", r"dict\[(str|Hashable)|tuple\[bool|optional|Tensor|Module|Shards|EntryProblem|Optimizer"),
    (r"py:obj", r"typing\.Literal\[.*"),
    (r"py:func", r"estimated|save_model"),
]


def _arguments(_: dict[str, Any], script: dict[str, Any]) -> list[str]:
    """Examples that want files of their own run on embedded data here."""
    is_graph = Path(script["src_file"]).name == "cora_pyg.py"
    return ["--dataset", "karate", "--max-iter", "60"] if is_graph else []


sphinx_gallery_conf = {
    "examples_dirs": str(HERE.parent / "examples"),
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 1e9,
    "plot_gallery": "True",
    "abort_on_example_error": True,
    "image_scrapers": (),
    "reset_argv": _arguments,
    "reset_modules": (),
    "remove_config_comments": True,
    "write_computation_times": False,
    "nested_sections": False,
    "parallel": 2,
}
warnings.filterwarnings("ignore", category=UserWarning)


class NamesInProse(SphinxPostTransform):
    """The pages are read on GitHub too, and name pages as ``docs/theory.md`` and code as ``engine.Engine.sweep``.

    On the site those are links, to the page and to the reference.
    """

    default_priority = 5

    def run(self, **_: Any) -> None:
        for literal in list(self.document.findall(nodes.literal)):
            if isinstance(literal.parent, nodes.reference):
                continue
            text = literal.astext()
            name = text.removeprefix("docs/").removesuffix(".md")
            if text == f"docs/{name}.md" and name in self.env.found_docs:
                if self.env.docname != name:
                    title = nodes.Text(self.env.titles[name].astext().split(":")[0])
                    literal.replace_self(self._link(name, "", title))
            elif re.fullmatch(r"[a-z_]+(\.\w+)+", text) and (found := self._documented(text)):
                literal.replace_self(self._link(*found, literal.deepcopy()))

    def _link(self, docname: str, anchor: str, shown: nodes.Node) -> nodes.reference:
        uri = self.app.builder.get_relative_uri(self.env.docname, docname) + (f"#{anchor}" if anchor else "")
        return nodes.reference("", "", shown, refuri=uri, internal=True)

    def _documented(self, text: str) -> tuple[str, str] | None:
        """Where the reference has a name of the library; it may have it under a shorter one."""
        if not _exists(f"dladmm.{text}"):
            return None
        objects = self.env.get_domain("py").objects  # type: ignore[attr-defined]
        parts = text.split(".")
        for end in (".".join(parts[-2:]), parts[-1]):
            found = {(o.docname, o.node_id) for name, o in objects.items() if name.endswith(f".{end}")}
            if len({docname for docname, _ in found}) == 1 and (end != parts[-1] or len(found) == 1):
                return min(found, key=lambda pair: len(pair[1]))
        return None


def _exists_elsewhere(_app: Sphinx, _env: Any, node: Any, shown: Any) -> Any:
    """A name without a page, of torch or of a helper, is shown without a link; one that does not exist is a warning."""
    if node.get("refdomain") != "py":
        return None
    within = [node.get("py:module"), node.get("py:class")]
    target = node["reftarget"]
    for parts in ([target], [within[0], target], [*within, target]):
        if None not in parts and _exists(".".join(parts)):
            return shown
    return None


def _exists(name: str) -> bool:
    parts = name.split(".")
    found: Any = None
    for i, part in enumerate(parts):
        if hasattr(found, part):
            found = getattr(found, part)
            continue
        try:
            found = importlib.import_module(".".join(parts[: i + 1]))
        except ImportError:
            return False
    return True


LITERAL = re.compile(r"(``.*?``|:\w+:`.*?`)")


def _plain_signs(_app: Sphinx, _what: str, _name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    """Docstrings have formulas such as |x| and a* in plain text, which are signs and no markup."""
    literal_above = -1
    for i, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if literal_above >= 0 and line.strip() and indent <= literal_above:
            literal_above = -1
        if literal_above < 0:
            parts = LITERAL.split(line)
            parts[::2] = [re.sub(r"([|*])", r"\\\1", part) for part in parts[::2]]
            lines[i] = "".join(parts)
        if line.rstrip().endswith("::"):
            literal_above = indent


SECTIONS = ("Parameters", "Attributes", "Returns", "Raises", "Notes", "Examples")


def _numpydoc_sections(
    _app: Sphinx, _what: str, _name: str, _object: Any, _options: Any, lines: list[str]
) -> None:
    """Render numpydoc sections as a heading with a list; napoleon would make a reference of every word of a type."""
    shown: list[str] = []
    section = ""
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line in SECTIONS and following and set(following) == {"-"}:
            section = line
            shown += [f".. rubric:: {line}", ""]
        elif section and line and set(line) == {"-"}:
            continue
        elif section in SECTIONS[:4] and line and not line.startswith(" "):
            names, _, kind = line.partition(" : ")
            if section in SECTIONS[:2]:
                names = ", ".join(f"``{name}``" for name in names.split(", "))
            shown += ["", f"- {names} : {kind}" if kind else f"- {names}", ""]
        elif section in SECTIONS[:4]:
            shown.append(line[2:])
        else:
            shown.append(line)
    lines[:] = shown


def _mathml(self: Any, node: nodes.Element, block: bool) -> None:
    """A formula as MathML, which browsers draw themselves: the site loads no script from elsewhere."""
    try:
        written = tex2mathml(node.astext(), as_block=block)
    except MathError as error:
        logging.getLogger(__name__).warning("formula not understood: %s", error, location=node)
        written = self.encode(node.astext())
    self.body.append(f'<div class="math">{written}</div>\n' if block else written)
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_html_math_renderer(
        "mathml",
        inline_renderers=(lambda self, node: _mathml(self, node, False), None),
        block_renderers=(lambda self, node: _mathml(self, node, True), None),
    )
    app.add_post_transform(NamesInProse)
    app.connect("autodoc-process-docstring", _numpydoc_sections)
    app.connect("autodoc-process-docstring", _plain_signs)
    app.connect("missing-reference", _exists_elsewhere)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
