"""Tables on running text: losses by token category, and generated samples."""
