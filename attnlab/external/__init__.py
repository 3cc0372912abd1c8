"""Results that were trained elsewhere: read files of runs, and judge them."""
