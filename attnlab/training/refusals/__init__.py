"""What is refused before it is built: values that no signature takes, and sizes that no machine holds; and in
one line what fails while it is built.
"""
