"""Sphinx settings of the pages: Markdown through MyST, the theme that Sphinx brings."""

project = "iq-ops"
author = "the iq-ops contributors"
project_copyright = "the iq-ops contributors, Apache-2.0"

extensions = ["myst_parser"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]

html_theme = "alabaster"
html_theme_options = {"description": "The indexer query of sparse attention", "page_width": "1100px"}
html_sidebars = {"**": ["about.html", "searchfield.html", "navigation.html"]}
html_show_sourcelink = False
