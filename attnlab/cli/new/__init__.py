"""`new`: a kind and a name come in; a module, a yaml and a test go out. Imports no torch."""
