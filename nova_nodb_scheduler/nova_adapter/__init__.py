# SPDX-License-Identifier: Apache-2.0
"""The only package that knows Nova. In this folder: what Nova, operators and commands enter by
(activation, the two managers, the RPC server), and the assembly of all else from nova.conf.
Sub-packages import downwards: service > decisions > claims, orphans, reads > conversion;
all of them but conversion may use placement > reporting.
"""
