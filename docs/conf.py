"""The pages as a site: `sphinx-build -c docs . build/site`. They are Markdown, to be read where they are as well."""

project = "gander"
extensions = ["myst_parser", "sphinxcontrib.mermaid"]
root_doc = "docs/index"
include_patterns = [
    "README.md",
    "CONTRIBUTING.md",
    "docs/*.md",
    "bindings/README.md",
    "examples/ci/README.md",
    "golden/RECIPES.md",
    "traces/FORMAT.md",
]
html_theme = "furo"
html_title = "gander"
myst_heading_anchors = 3
myst_fence_as_directive = ["mermaid"]
nitpicky = True
