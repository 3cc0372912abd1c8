"""Attention, cut at its seams: one file per seam, axes are the yaml's business.

Shapes: B batch, T queries, S keys, H query heads, G key/value heads, D query/key width, V value width, M
model width. Query head h reads key/value head h // (H // G).
"""
