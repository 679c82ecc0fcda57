"""Metric definitions (names, units, meanings), and the page `docs/metrics.md` printed from them."""
