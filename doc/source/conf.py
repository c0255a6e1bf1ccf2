# SPDX-License-Identifier: Apache-2.0
"""Sphinx configuration of the documentation."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "ext"))

extensions = [
    "namespaces_table",
    "openstackdocstheme",
    "oslo_config.sphinxconfiggen",
    "oslo_config.sphinxext",
    "source_links",
    "sphinx.ext.autodoc",
]

master_doc = "index"
project = "nova-nodb-scheduler"
copyright = "The nova-nodb-scheduler developers"
exclude_patterns: list[str] = []

# Released versions are told by the release notes; a checkout without tags has none.
version = ""
release = ""

config_generator_config_file = [
    (
        "../../etc/nova-nodb-scheduler/config-generator.conf",
        "_static/nova-nodb-scheduler",
    )
]
autodoc_member_order = "bysource"
autodoc_typehints = "none"
# Annotations are resolved where they are read; signatures as written are what a reader wants.
autodoc_preserve_defaults = True

# As "sphinx-build -b man" makes them: (document, name, what it does, authors, section).
man_pages = [
    (
        "user/commands",
        "nova-nodb-manage",
        "schema, states and health of Nova's scheduling from memory",
        ["The nova-nodb-scheduler developers"],
        8,
    ),
    (
        "user/simulate",
        "nova-nodb-simulate",
        "schedulers on a simulated cloud",
        ["The nova-nodb-scheduler developers"],
        1,
    ),
]

html_theme = "openstackdocs"
html_static_path = ["_static"]
pygments_style = "native"
openstackdocs_repo_name = "nova-nodb-scheduler"
openstackdocs_auto_name = False
openstackdocs_auto_version = False
openstackdocs_use_storyboard = False
