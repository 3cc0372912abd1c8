"""Lossy caches for trained models: they hold fewer bits, or fewer tokens, than were written."""
