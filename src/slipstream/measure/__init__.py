"""Measurements of one's own models: benchmarks, advice, the certificate, and reports of them."""
