"""What a run measures that trains nothing: each class is a `measurement` of the config. Training imports
nothing from here, so a change here leaves the ids of trained runs alone.
"""
