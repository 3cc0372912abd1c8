"""Measurements on running text: the displayed window, losses by token category, generated samples."""
