# SPDX-License-Identifier: Apache-2.0
"""Hand the build to pbr, which reads everything from setup.cfg."""

import setuptools

setuptools.setup(setup_requires=["pbr>=6.1.1"], pbr=True)
