# SPDX-License-Identifier: Apache-2.0
"""Back ends of the synchronizer, one package each; the loader finds them by their entry points.
A driver fills the contract and may import it, drivers.support and the model; no other driver.
"""
