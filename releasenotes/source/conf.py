# SPDX-License-Identifier: Apache-2.0
"""Sphinx configuration of the release notes."""

extensions = ["openstackdocstheme", "reno.sphinxext"]

master_doc = "index"
project = "nova-nodb-scheduler Release Notes"
copyright = "The nova-nodb-scheduler developers"

# Release notes are not versioned.
release = ""
version = ""

html_theme = "openstackdocs"
pygments_style = "native"
openstackdocs_repo_name = "nova-nodb-scheduler"
openstackdocs_auto_name = False
openstackdocs_auto_version = False
openstackdocs_use_storyboard = False
