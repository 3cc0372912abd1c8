"""What a model makes of running text: the window that is shown, losses by kind of token, what it writes."""
