"""How Sphinx makes the book of the pages in this directory; `scripts/docs.sh` runs it."""

from __future__ import annotations

import sys
from pathlib import Path

import sfpubsub

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS / "_ext"))

project = "sfpubsub"
author = "the sfpubsub project"
release = version = sfpubsub.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "from_code",  # docs/_ext: pages that are drawn from the code's own tables
]
exclude_patterns = ["_ext"]

# Every reference must lead somewhere; scripts/docs.sh makes an error of each warning.
nitpicky = True

myst_heading_anchors = 4  # links to headings, spelt as code hosts spell them
myst_linkify_fuzzy_links = False

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

html_theme = "furo"
html_title = f"sfpubsub {release}"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["drawings.css"]
html_theme_options = {"navigation_with_keys": True}

# In docstrings `Name` is a name of Python where there is one, and code otherwise.
default_role = "py:obj"
nitpick_ignore = [
    # Of the inside: named by signatures, and nothing that a caller makes or looks into.
    ("py:class", "sfpubsub.auth.token_file.TokenFile"),
    ("py:class", "sfpubsub.protocol.commands.OpenPublish"),
    ("py:class", "sfpubsub.protocol.events.Failure"),
    ("py:class", "sfpubsub.protocol.events.Response"),
    ("py:class", "sfpubsub.spark.ingest.progress.Progress"),
    ("py:class", "sfpubsub.spark.raw.rows.Row"),
    ("py:class", "sfpubsub.spark.raw.rows.TimedEvents"),
    ("py:class", "sfpubsub.spark.records.step.StepPlan"),
]
nitpick_ignore_regex = [
    ("py:class", r"sfpubsub\..*\.([A-Z]\w*T|Received)"),  # type variables
    ("py:obj", ".*"),
    ("py:.*", r"(?!sfpubsub\.).*"),  # other projects' names; their pages are not asked for
]
toc_object_entries = False  # every method in the contents of every page: a third of the build
suppress_warnings = ["ref.python"]  # of a word such as `type`, which several classes have
