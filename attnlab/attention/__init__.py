"""Attention in exchangeable parts: one module per extension point; configs choose the combination.

Shapes: B batch, T queries, S keys, H query heads, G key/value heads, D query/key width, V value width, M
model width. Query head h reads key/value head h // (H // G).
"""
