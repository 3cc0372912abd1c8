"""What keeps a store from harm, and a user from a stranger's: whose a run is and who uses it, what was
declared and when, whether its files are as they were left, and which names in it may be built.
"""
