"""What runs make of their text, as tables: losses by kind of token, and what each arm writes."""
