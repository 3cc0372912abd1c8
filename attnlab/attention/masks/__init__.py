"""Keys that a query may see: pure functions of (batch, head, query position, key position)."""
